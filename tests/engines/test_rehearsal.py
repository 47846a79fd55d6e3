"""The dry pass: each broken method or model gets one line before anything is trained; costs are what they will be."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import fedekd
from fedekd import methods
from fedekd.data import Dataset, federate
from fedekd.engines import rehearsal
from fedekd.engines.rehearsal import rehearse, traffic
from fedekd.engines.serial import Serial
from fedekd.errors import FedekdError
from fedekd.methods import Copy, Exchange, Method, Remember, Train
from fedekd.runs.plan import plan
from fedekd.settings import make_settings
from rehearsing import job, nothing_is_trained, one_line
from tiny import quick, tiny_private, tiny_proxy


@dataclass(frozen=True)
class Mine(Method):
    """FedAvg, of which each test breaks one thing"""

    name = "mine"

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private")

    def loss(self, batch):
        return batch.supervised("private")


def with_steps(*steps, **more):
    """The method whose rounds are these steps; functions among them take the method."""
    made = {"steps": lambda self, round: tuple(s(self) if callable(s) else s for s in steps)}
    return broken(**made, **more)


def broken(**changed):
    return dataclass(frozen=True)(type("Mine", (Mine,), {"__doc__": "Broken", **changed}))()


def train(self):
    return Train(("private",), self.loss)


def sends(function, **more):
    return lambda self: Exchange("made", send=function, **more)


def combines(function):
    return lambda self: Exchange("private", function)


BROKEN = {
    "vector loss": (
        broken(loss=lambda self, b: b.task.loss(b.outputs["private"], b.y)), "loss of private", "batch.mean",
    ),
    "loss is a number": (broken(loss=lambda self, b: 1.0), "loss of private", "float", "scalar tensor"),
    "loss is nothing": (broken(loss=lambda self, b: None), "loss of private", "nothing"),
    "detached loss": (broken(loss=lambda self, b: b.supervised("private").detach()), "no gradient", "detached"),
    "loss ignores the trained": (
        broken(roles=("private", "proxy"), reads_weights=("proxy",), loss=lambda self, b: sum(
            w.sum() for w in b.weights["proxy"].values())), "no gradient with respect to what is trained",
    ),
    "trust of another shape": (
        broken(loss=lambda self, b: (b.supervised("private"), {"trust": b.y.sum()})), "trust", "each sample",
    ),
    "if on a tensor": (
        broken(loss=lambda self, b: b.supervised("private") * (2 if b.y.sum() > 3 else 1)), "loss of private",
        "torch.where", "stacks = False",
    ),
    "item": (broken(loss=lambda self, b: b.supervised("private") * b.y.sum().item()), "torch.where"),
    "float": (broken(loss=lambda self, b: b.supervised("private") * float(b.y.sum())), "torch.where"),
    "item in predict": (
        broken(predict=lambda self, b: b.outputs["private"] * b.counts.sum().item()), "predict", "torch.where",
    ),
    "item in remember": (
        with_steps(train, Remember(lambda b: {"a": b.y * b.y.sum().item()}, "train")), "Remember", "torch.where",
    ),
    "item in send": (
        with_steps(train, sends(lambda b: {"a": b.counts * b.counts.sum().item()})), "'made'", "torch.where",
    ),
    "loss raises": (broken(loss=lambda self, b: b.nothing), "loss of private", "AttributeError"),
    "unknown role in train": (with_steps(lambda self: Train(("prviate",), self.loss)), "Train", "'prviate'", "private"),
    "unknown frozen role": (with_steps(lambda self: Train(("private",), self.loss, frozen=("a",))), "Train", "'a'"),
    "unknown role in remember": (with_steps(train, Remember(lambda b: {}, "train", ("a",))), "Remember", "'a'"),
    "unknown source": (with_steps(train, Copy("a", "private")), "Copy", "'a'"),
    "unknown target": (with_steps(train, Copy("private", "a")), "Copy", "'a'"),
    "unknown model sent": (with_steps(train, Exchange("a")), "Exchange", "'a'"),
    "unknown model sent into a known one": (with_steps(train, Exchange("a", into="private")), "Exchange", "'a'"),
    "unknown role in send": (with_steps(train, sends(lambda b: {}, split="val", roles=("a",))), "Exchange", "'a'"),
    "unknown into": (with_steps(train, Exchange("private", into="a")), "Exchange", "'a'"),
    "unknown like": (broken(like={"a": "private"}), "like", "'a'"),
    "unknown role whose weights are read": (broken(reads_weights=("a",)), "reads_weights", "'a'"),
    "role as a string": (with_steps(lambda self: Train("private", self.loss)), "Train", "tuple"),
    "unknown split": (with_steps(lambda self: Train(("private",), self.loss, split="dev")), "'dev'", "train, val"),
    "training on test rows": (
        with_steps(lambda self: Train(("private",), self.loss, split="test")), "'test'", "train, val",
    ),
    "remembering test rows": (
        broken(personalise=lambda self: (Remember(lambda b: {"a": b.y}, "test"),)), "'test'", "train, val",
    ),
    "sending test rows": (with_steps(train, sends(lambda b: {"a": b.counts}, split="test")), "'test'", "train, val"),
    "unknown optimizer": (with_steps(lambda self: Train(("private",), self.loss, optimizer="lion")), "'lion'", "adam"),
    "part of an epoch": (with_steps(lambda self: Train(("private",), self.loss, epochs=1.5)), "epochs=1.5", "whole"),
    "learning rate as a text": (with_steps(lambda self: Train(("private",), self.loss, lr="0.1")), "lr='0.1'"),
    "learning rate below zero": (with_steps(lambda self: Train(("private",), self.loss, lr=-0.1)), "lr=-0.1", "from 0"),
    "no function": (with_steps(Train(("private",), "loss")), "Train", "function"),
    "steps give nothing": (broken(steps=lambda self, round: None), "steps(0)", "nothing", "tuple"),
    "steps give a generator": (broken(steps=lambda self, round: (s for s in [train(self)])), "generator", "tuple"),
    "steps give one step": (broken(steps=lambda self, round: train(self)), "Train", "tuple"),
    "steps give something else": (with_steps(train, "private"), "steps(0)", "str", "tuple"),
    "steps raise": (broken(steps=lambda self, round: 1 / 0), "steps(0)", "ZeroDivisionError"),
    "no steps": (broken(steps=Method.steps), "steps(0)", "needs steps(self, round)"),
    "remembers nothing": (with_steps(train, Remember(lambda b: None)), "Remember", "nothing", "dict"),
    "remembers numbers": (with_steps(train, Remember(lambda b: {"a": 1.0})), "Remember", "dict of tensors"),
    "sends rows": (
        with_steps(train, sends(lambda b: {"o": b.outputs["private"]}, split="train", roles=("private",))), "'made'",
        "depends on the client's rows",
    ),
    "sends a tensor": (with_steps(train, sends(lambda b: b.counts)), "'made'", "dict of tensors"),
    "combine gives no pair": (with_steps(train, combines(lambda u: u.mean())), "'private'", "pair"),
    "combine gives a wrong shape": (
        with_steps(train, combines(lambda u: ({n: w.sum() for n, w in u.mean().items()}, {}))), "private model has no",
    ),
    "combine raises": (with_steps(train, combines(lambda u: u.memory["a"])), "combines 'private'", "KeyError"),
    "single uploads where the mean is enough": (
        with_steps(train, lambda self: Exchange("private", lambda u: (u.each[0], {}), mean_only=True)),
        "combines 'private'", "`mean_only` and reads `uploads.each`",
    ),
    "each for one": (
        with_steps(train, sends(lambda b: {"a": b.counts}, combine=lambda u: ([u.each[0]], {}), each=True)),
        "for each upload",
    ),
    "two things by one name": (
        with_steps(train, Exchange("private"), lambda self: Exchange("private", into="private")), "two names",
    ),
    "refines nothing": (
        with_steps(train, lambda self: Exchange("a", send=lambda b: {"a": b.y.sum()}, refine=train(self))), "no model",
    ),
    "wrong shape of the answer": (broken(predict=lambda self, b: b.outputs["private"][:, 0]), "predict", "must be"),
    "answer from what is not named": (broken(predict=lambda self, b: b.outputs["proxy"]), "outputs['proxy']", "name"),
    "exchange before answering": (broken(personalise=lambda self: (Exchange("private"),)), "personalise()", "Exchange"),
    "personalise gives a step": (broken(personalise=lambda self: train(self)), "personalise()", "tuple"),
    "unknown role before answering": (broken(personalise=lambda self: (Copy("a", "private"),)), "Copy", "'a'"),
    "begin gives nothing": (broken(begin=lambda self, client: None), "begin() gives NoneType", "return a dict"),
    "begin raises": (broken(begin=lambda self, client: {"a": client.nothing}), "begin()", "AttributeError"),
    "no such part": (with_steps(lambda self: Train(("private",), self.loss, part=lambda m: ["a.b"])), "has no 'a.b'"),
    "no such part exchanged": (with_steps(train, Exchange("private", part=lambda m: ["a.b"])), "has no 'a.b'"),
    "copy between models that differ": (
        with_steps(train, Copy("proxy", "private"), roles=("private", "proxy")), "the proxy model has no",
    ),
    "only in the second round": (
        broken(steps=lambda self, round: (Train(("private",), self.late if round else self.loss), Exchange("private")),
               late=lambda self, b: b.memory["late"]), "memory['late']", "Remember",
    ),
    "public rows that are not there": (
        with_steps(lambda self: Train(("private",), self.loss, split="public")), "--public 0.1",
    ),
    "public rows needed": (broken(public="rows"), "--public 0.1"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_method_gets_one_line(images, what):
    method, *words = BROKEN[what]
    with pytest.raises(FedekdError) as error:
        rehearse(job(images, method))
    line = one_line(error, *words)
    assert "'mine'" in line or "model" in line


@pytest.mark.parametrize(
    "what", ["vector loss", "steps give nothing", "if on a tensor", "public rows needed", "loss raises"]
)
def test_a_run_ends_with_that_line_and_leaves_nothing(digits, tmp_path, monkeypatch, what):
    nothing_is_trained(monkeypatch)
    method, *words = BROKEN[what]
    given = {"methods": [method], "clients": 3, "rounds": 1, "private": tiny_private, "proxy": tiny_proxy}
    with pytest.raises(FedekdError) as error:
        fedekd.run(digits, progress=False, out=str(tmp_path / "out"), **given)
    one_line(error, *words)
    with pytest.raises(FedekdError) as error:
        plan(make_settings({"dataset": "digits", **given}), digits)
    one_line(error, *words)
    left = [p.name for p in (tmp_path / "out").rglob("*")] if (tmp_path / "out").exists() else []
    assert not [name for name in left if "result" in name or name.endswith((".pt", ".jsonl", ".npz"))], left


def test_public_rows_without_labels(digits):
    federation = replace(federate(digits, clients=3, seed=1, public=0.1), public_labelled=False)
    with pytest.raises(FedekdError) as error:
        rehearse(job(federation, broken(public="labels")))
    one_line(error, "labels")


def test_a_client_that_was_never_there_must_be_able_to_answer(images):
    steps = Remember(lambda b: {"late": b.counts.sum()}), train
    reads = {"predict": lambda self, b: b.outputs["private"] * b.memory["late"]}
    late = with_steps(*steps, Exchange("private"), **reads)
    rehearse(job(images, late))
    with pytest.raises(FedekdError) as error:
        rehearse(job(images, late, participation=0.5))
    one_line(error, "never there", "memory['late']")
    assert rehearse(job(images, with_steps(*steps, **reads), participation=0.5)) == [[], []], "alone it always is there"


# --- methods that are right -----------------------------------------------------------------------------------


def test_a_method_that_does_not_stack_may_look_at_numbers(images):
    assert rehearse(job(images, broken(stacks=False, loss=lambda self, b: b.supervised("private") * b.y.sum().item())))


def test_nobodys_rows_are_looked_at(images):
    hidden = replace(images, dataset=replace(images.dataset))
    for name in ("x", "y"):
        array = getattr(hidden.dataset, name)
        object.__setattr__(
            hidden.dataset, name, np.lib.stride_tricks.as_strided(array[:1], array.shape, (0,) * array.ndim)
        )
    seen = rehearse(job(hidden, broken()))
    assert seen == rehearse(job(images, broken()))


def test_torchs_random_state_is_left_alone(images):
    def private(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, outputs))

    torch.manual_seed(3)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    rehearse(job(images, methods.get("fedavg"), private=private))
    assert torch.equal(before, torch.get_rng_state())
    assert (numpys == np.random.get_state()[1]).all()  # noqa: NPY002


def test_a_rehearsal_is_played_once(images, monkeypatch):
    """Also where it ends with a TypeError of the user's own, or the method cannot be a key."""
    calls, real = [], rehearsal._rehearse
    monkeypatch.setattr(rehearsal, "_rehearse", lambda job: calls.append(1) or real(job))
    good = broken()
    for _ in range(3):
        rehearse(job(images, good))
    assert len(calls) == 1
    with pytest.raises(FedekdError):
        rehearse(job(images, broken(loss=lambda self, b: len(3))))
    assert len(calls) == 2

    def fails(job):
        calls.append(1)
        raise TypeError("of the user's own")

    monkeypatch.setattr(rehearsal, "_rehearse", fails)
    with pytest.raises(TypeError):
        rehearse(job(images, broken()))
    assert len(calls) == 3


def test_large_images_take_no_time():
    rows = np.zeros((60, 3, 224, 224), np.uint8)
    federation = federate(Dataset("large", "classification", rows, np.arange(60) % 3, 3), clients=3, partition="iid")
    began = time.process_time()
    assert rehearse(job(federation, methods.get("fedekd")))
    assert time.process_time() - began < 10


# --- every method of ours --------------------------------------------------------------------------------------


def fits(method, task):
    try:
        method.check(task)
    except FedekdError:
        return False
    return True


KINDS = ("classification", "regression")
BY_ROWS = ("pfedhr",)  # what comes back are networks of a size that depends on the rows
TASKS = [(name, task) for name, method in methods.known().items() for task in KINDS if fits(method, task)]


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_every_method_passes_and_costs_what_it_says(digits, diabetes, name, task):
    method = quick(name)
    share = 0.1 if method.public else None
    dataset = digits if task == "classification" else diabetes
    federation = federate(dataset, clients=3, alpha=0.5, seed=1, public=share)
    one = job(federation, method, epochs=0)
    costs = rehearse(one)
    engine = Serial(one)
    for round in range(2):
        before = engine.door.bytes_up, engine.door.bytes_down
        engine.round()
        now = engine.door.bytes_up, engine.door.bytes_down
        said = [3 * sum(getattr(cost, way) for cost in costs[round]) for way in ("up", "down")]
        real = [b - a for a, b in zip(before, now, strict=True)]
        assert said[0] == real[0]
        assert said[1] == real[1] or (name in BY_ROWS and said[1] > 0)
    assert traffic(one) == engine.door.bytes_up + engine.door.bytes_down or name in BY_ROWS


def test_what_is_sent_of_public_rows_grows_with_them(digits):
    method = with_steps(
        train,
        sends(lambda b: {"o": b.outputs["private"], "n": b.counts}, split="public", roles=("private",)),
        public="rows",
    )
    for share in (0.05, 0.2):
        one = job(federate(digits, clients=3, seed=1, public=share), method)
        engine = Serial(one)
        engine.round()
        engine.round()
        assert traffic(one) == engine.door.bytes_up + engine.door.bytes_down
