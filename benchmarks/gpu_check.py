"""Whether the stacked engine on the GPU agrees with the serial engine on the CPU, for every method.

python benchmarks/gpu_check.py [NAME ...] [--plain] [--quick] [--options] [--mixed] [--serial] [--turns] [--lanes]

--plain: without our own kernels; --quick: fp32 and bf16 on the classification alone; --options: with weight decay, a
learning rate that falls and augmented images, by sgd and momentum too; --mixed: with a CNN, a ResNet with batch norm
and a perceptron with dropout in turn, or the ResNet alone where a method averages private models; --serial: the serial
engine on the GPU, whose steps are CUDA graphs, in place of the stacked one; --turns: half of the clients take part in a
round, in fp32, with their rows in main memory or on the GPU, and "when read": those in main memory brought one read
after another in place of ahead, where any difference from ahead is a failure (methods that send nothing train everyone
in every round, and bring no rows); --lanes: three chunks of two clients one after another, and side by side with CUDA
graphs around the rounds' steps, where any difference is a failure.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from typing import Any

import numpy as np
import torch
from torch import nn

from fedekd import methods
from fedekd.architectures.cnn import CNN
from fedekd.architectures.mlp import MLP
from fedekd.architectures.resnet import ResNet
from fedekd.data import Dataset, Federation, Split
from fedekd.engines import member_rows, row_kernels, stack
from fedekd.engines.cuda_graphs import Recorded
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.exchange import exchanges
from fedekd.models import Dealt


def graphs_around_rounds(engine) -> list[bool]:
    """Of all work that should be a graph by the last of five rounds, whether it is."""
    every = [(where[0], made) for stack in engine.stacks for (where, *_), (_, made) in stack.chunks.items()]
    last = engine.round_number - 1
    chunks = [made for kind, made in every if kind == "step" and made.loaded == last and not made.augmented]
    exchange = engine.exchange
    means = [exchange.recorded[name] for name, step in exchange.exchanges.items() if exchange._means_only(step)]
    alone = engine.jobs[0].method.twin == "alone" or len(engine.stacks) > 1
    recorded = [work for made in chunks for work in (made.models_read, made.given_back)]
    return [work.graph is not None for work in recorded + ([] if alone else means)]


def private(shape, outputs):
    return CNN(shape, outputs, (16, 32, 32), 32)


def proxy(shape, outputs):
    return CNN(shape, outputs, (16, 32), 16)


class SmallResNet(ResNet):
    """Of the size of the other models here, and with dropout."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs, (8, 16), 1, nn.BatchNorm2d)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, outputs))


def perceptron(shape, outputs):
    return nn.Sequential(nn.Flatten(), MLP(28 * 28, outputs, (32, 16), dropout=0.2))


def models_for(method, mixed: bool):
    """The private factory."""
    if not mixed:
        return private
    sent = [name for name, step in exchanges(method, 3).items() if step.send is None]
    averaged = any(method.root(name) == "private" for name in sent)
    alike = {"fedproto", "fedgh"} & {method.name}  # these compare features, which must be of one width
    return SmallResNet if averaged or alike else Dealt((private, SmallResNet, perceptron))


def federation(task: str) -> Federation:
    """Blobs of brightness whose place tells the class, over clients of very unequal size."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 1200)
    x = rng.normal(100, 30, (1200, 1, 28, 28))
    for i, c in enumerate(y):
        x[i, 0, 5 * c : 5 * c + 6, 8:20] += 80
    targets = y.astype(np.float32) if task == "regression" else y
    dataset = Dataset("blobs", task, x.clip(0, 255).astype(np.uint8), targets, 1 if task == "regression" else 5)
    sizes, at, splits = (450, 220, 130, 70, 40, 9), 0, []
    for n in sizes:
        rows = rng.permutation(np.arange(at, at + n))
        splits.append(Split(rows, rows[: max(4, n // 4)], np.arange(1020, 1200)))
        at += n
    names = tuple(str(k) for k in range(len(sizes)))
    shift, gain = np.asarray(-1, np.float32), np.asarray(2 / 255, np.float32)
    how, public = {"kind": "sites", "alpha": None}, np.arange(950, 1020)
    return Federation(dataset, tuple(splits), names, how, shift, gain, 0.0, 1.0, public)


def trust_apart(told: list[dict[str, Any]], reference: list[dict[str, Any]]) -> float:
    """The largest difference of a client's mean trust in a round. It has to be told of as many samples."""
    rounds = zip(told, reference, strict=True)
    pairs = [pair for one, other in rounds for pair in zip(one["clients"], other["clients"], strict=True)]
    for one, other in pairs:
        assert (one is None) == (other is None), "trust is told of other clients"
        assert one is None or sum(one["histogram"]) == sum(other["histogram"]), "trust is told of more or fewer samples"
    return max((abs(one["mean"] - other["mean"]) for one, other in pairs if one is not None), default=0.0)


recorded_work = Recorded.do


def as_it_is(recorded: Recorded, work: Any, *_: Any) -> Any:
    """``Recorded.do`` without a graph."""
    return work()


TWINS = [("fedekd", "alone"), ("fedekd", "shuffled"), ("fedekd", "uniform"), ("fml", "alone"), ("fml", "shuffled")]
TWINS += [("fedrep", "alone"), ("ditto", "alone"), ("fedadam", "alone")]


def main() -> None:
    if "--plain" in sys.argv:
        row_kernels.INSTALLED = False
    turns = "--turns" in sys.argv
    if turns and "--serial" in sys.argv:
        raise SystemExit("--turns is about the stacked engine: leave --serial out")
    lanes = "--lanes" in sys.argv
    if turns:
        stack.MANY = 2
    bad, names = 0, [name for name in sys.argv[1:] if not name.startswith("-")]
    quick = "--quick" in sys.argv
    rates: dict[str, float] = {"adam": 1e-3}
    more: dict[str, Any] = {}
    if "--options" in sys.argv:
        rates |= {"sgd": 0.05, "momentum": 0.01}
        more = {"weight_decay": 0.01, "lr_schedule": "cosine", "augment": "flip-crop"}
    tasks = ("classification",) if quick else ("classification", "regression")
    for task, optimizer in itertools.product(tasks, rates):
        data = federation(task)
        twins = {f"{n}@{c}": methods.get(f"{n}@{c}") for n, c in TWINS}
        for name, method in {**methods.known(), **twins}.items():
            if names and name not in names:
                continue
            if task not in method.tasks or not method.roles or not method.stacks:
                continue
            if task == "regression" and "-" in name:
                continue
            try:
                results, losses, trust = {}, {}, {}
                kinds = ("fp32", "bf16") if quick else ("fp32", "tf32", "bf16")
                wheres = (
                    ("main memory", "when read", "on the GPU")
                    if turns
                    else ("one lane", "side by side")
                    if lanes
                    else ("",)
                )
                variants = [("cpu", "fp32", ""), *itertools.product(("cuda",), ("fp32",) if turns else kinds, wheres)]
                for device, precision, where in variants:
                    member_rows.ROOM = 0.4 if where == "on the GPU" else 0.0
                    training = Training(
                        5 if lanes else 4 if turns else 3 if more else 2,
                        2,
                        32,
                        rates[optimizer],
                        optimizer,
                        device=device,
                        precision=precision,
                        participation=0.5 if turns else 1.0,
                        **more,
                    )
                    job = Job(data, method, 0, training, models_for(method, "--mixed" in sys.argv), proxy)
                    serial = device == "cpu" or "--serial" in sys.argv
                    options: dict[str, Any] = {"fused": "--plain" not in sys.argv}
                    if lanes:
                        Recorded.do = as_it_is if where == "one lane" else recorded_work
                        options |= {"chunk": 2, "lanes": 1 if where == "one lane" else 3}
                    engine = Serial(job) if serial else Stacked([job], **options)
                    for one in engine.stacks if turns and not serial else ():
                        if not one.in_turns:  # whoever sends nothing trains in every round
                            continue
                        rows = next(w for tree in one.weights.values() for w in tree.values())
                        assert one.brings, "nothing is brought"
                        assert (rows.home.type == "cpu") == (where != "on the GPU"), "rows lie elsewhere"
                        one.brings = where != "when read"
                    for _ in range(training.rounds):
                        engine.round()
                        if lanes:
                            engine.measure()
                    if lanes and not serial:
                        graphs = graphs_around_rounds(engine)
                        assert not any(graphs) if where == "one lane" else all(graphs), f"{where}: graphs {graphs}"
                    if serial and not all(client.graphs == (device == "cuda") for client in engine.clients):
                        raise AssertionError("a step was not captured as a CUDA graph")
                    found = engine.measure()[0]
                    key = " ".join([device, precision, where]).strip()
                    results[key] = np.array([one.value for one in found])
                    losses[key] = np.array([one.val_loss for one in found])
                    trust[key] = engine.trust[0]
                if turns:
                    ahead, when_read = "cuda fp32 main memory", "cuda fp32 when read"
                    for one in (results, losses):
                        assert np.array_equal(one[ahead], one[when_read]), f"{ahead} and {when_read} differ"
                    assert trust[ahead] == trust[when_read], f"{ahead} and {when_read} differ in trust"
                for kind in kinds if lanes else ():
                    for one in (results, losses):
                        pair = one[f"cuda {kind} one lane"], one[f"cuda {kind} side by side"]
                        assert np.array_equal(*pair), f"{kind}: one lane and side by side differ"
                    same = trust[f"cuda {kind} one lane"] == trust[f"cuda {kind} side by side"]
                    assert same, f"{kind}: one lane and side by side differ in trust"
                reference = results.pop("cpu fp32")
                gaps = {key: round(float(np.abs(v - reference).max()), 4) for key, v in results.items()}
                lost = losses.pop("cpu fp32")
                apart = {key: round(float((np.abs(v - lost) / lost).max()), 4) for key, v in losses.items()}
                told = trust.pop("cpu fp32")
                weights = {key: round(trust_apart(one, told), 4) for key, one in trust.items()}
                print(
                    f"{task:14s} {name:16s} {optimizer:8s} cpu mean {reference.mean():.4f}  largest gap",
                    gaps,
                    "of the validation loss, relative",
                    apart,
                    *(("of a client's mean trust", weights) if told else ()),
                    flush=True,
                )
            except Exception:
                bad += 1
                print(task, name, optimizer, "FAILED", traceback.format_exc()[-900:], flush=True)
    print("failures:", bad)
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "4")))
    main()
