"""Rows of one group, such as a patient: batches name them alike in both engines, and no fold parts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedekd import methods
from fedekd.data import federate
from fedekd.dataset import RowNames
from fedekd.engines.job import Job
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.methods import Batch, Exchange, Method, Remember, Train
from fedekd.methods.second_opinion import FOLDS
from fedekd.runs.run_key import run_key
from stacking import compare
from tiny import TRAINING, job, quick

OURS = ("second-opinion", "second-opinion-near", "second-opinion-taught")
ENGINES = {"serial": Serial, "stacked": lambda job: Stacked([job])}


def named(dataset):
    """Some five rows of each patient, whose numbers say nothing."""
    codes = np.random.default_rng(7).integers(len(dataset.y) // 5, size=len(dataset.y))
    return replace(dataset, groups=RowNames.of("patient", codes))


def grouped(dataset, **more):
    return federate(named(dataset), clients=3, alpha=5.0, **more)


@pytest.fixture(params=["digits", "diabetes"])
def patients(request):
    return grouped(request.getfixturevalue(request.param))


class Told(Method):
    """Remembers the groups of whole splits, learns from some alone, and answers with them"""

    name = "told"

    def steps(self, round):
        remember = [Remember(self.of(split), split=split) for split in ("train", "val", "public")]
        return (Train(("private",), self.loss), Exchange("private"), *remember)

    def of(self, split):
        return lambda batch: {split: batch.groups}

    def loss(self, batch: Batch):
        losses = batch.task.loss(batch.outputs["private"], batch.y)
        return batch.mean(torch.where(batch.groups % 3 == 0, losses, 0.0))

    def predict(self, batch: Batch):
        outputs = batch.outputs["private"]
        return batch.groups.to(outputs.dtype).view(-1, *[1] * (outputs.dim() - 1)).expand(outputs.shape)


def test_they_are_numbered_within_a_clients_split(patients):
    codes, numbers = patients.dataset.groups.codes, patients.groups
    for own in patients.clients:
        for rows in (own.train, own.val, own.test):
            pairs = set(zip(codes[rows].tolist(), numbers[rows].tolist(), strict=True))
            assert sorted(number for _, number in pairs) == list(range(len(set(codes[rows]))))
            assert len(pairs) == len(set(codes[rows])) < len(rows)


def test_rows_of_a_public_file_stand_for_themselves(digits):
    plain = grouped(digits)
    dataset = plain.dataset
    more = replace(dataset, x=np.concatenate([dataset.x, dataset.x[:7]]), y=np.concatenate([dataset.y, dataset.y[:7]]))
    rows = len(dataset.y)
    federation = replace(plain, dataset=more, public=np.arange(rows, rows + 7))
    assert (federation.groups[rows:] == np.arange(7)).all()
    assert (federation.groups[:rows] == plain.groups).all()


def test_every_batch_of_both_engines_has_them(diabetes):
    rows = named(diabetes)
    dealt = [federate(rows, clients=3, alpha=5.0, partition=how, public=0.1) for how in ("iid", "dirichlet")]
    jobs = [job(federation, Told()) for federation in dealt]
    stacked = Stacked(jobs)
    stacked.round()
    for j, (one, many) in enumerate(zip(jobs, stacked.measure(), strict=True)):
        federation, serial = one.federation, Serial(one)
        serial.round()
        both = zip(federation.clients, serial.clients, stacked.clients_of(j), serial.measure()[0], many, strict=True)
        for own, client, other, *measured in both:
            for split, rows in (("train", own.train), ("val", own.val), ("public", federation.public)):
                wanted = federation.groups[rows]
                assert (client.memory[split].numpy() == wanted).all()
                padding = np.arange(len(rows), len(other.memory[split]))
                assert (other.memory[split].numpy() == [*wanted, *padding]).all()
            for split, rows in (("val", own.val), ("test", own.test)):
                for found in measured:
                    answered = found.answers(split)[:, 1] / federation.target_std
                    assert answered == pytest.approx(federation.groups[rows], rel=1e-5)
            for name, w in client.models["private"].state_dict().items():
                torch.testing.assert_close(w, other.models["private"].state_dict()[name], atol=1e-4, rtol=1e-3)


def test_without_groups_they_are_the_rows(images):
    assert images.groups is None
    engine = Serial(job(images, Told(), rounds=1))
    client = engine.clients[0]
    client.perform(Remember(Told().of("val"), split="val"), 0)
    assert torch.equal(client.memory["val"], torch.arange(len(client.rows["val"])))


@pytest.mark.parametrize("name", OURS)
def test_the_engines_agree(patients, name):
    compare([job(patients, quick(name))])


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("name", OURS[:2])
def test_what_answers_a_patient_has_not_seen_it(digits, name, engine):
    """Other labels of one patient's validation rows leave the answers to all of them as they were."""
    federation, method = grouped(digits), methods.get(name)
    own = federation.clients[0]
    numbers = federation.groups[own.val]
    most = np.bincount(numbers).argmax()
    theirs, together = numbers == most, numbers % FOLDS == most % FOLDS
    assert len({place % FOLDS for place in np.flatnonzero(theirs)}) > 1, "by rows they would be parted"
    y = federation.dataset.y.copy()
    y[own.val[theirs]] = (y[own.val[theirs]] + 1) % 10
    other = replace(federation, dataset=replace(federation.dataset, y=y))
    found = []
    for rows in (federation, other):
        trained = ENGINES[engine](job(rows, method, lr=1e-2))
        trained.round()
        found.append(trained.measure()[0][0].answers("val")[:, 1:])
    before, after = found
    assert (before[together] == after[together]).all()
    assert not (before[~together] == after[~together]).any(1).all()


def test_only_runs_whose_answers_changed_have_other_keys(digits):
    def key(federation, name):
        return run_key(Job(federation, methods.get(name), 0, TRAINING), "data")

    plain, by_patient = federate(digits, clients=3, partition="iid"), grouped(digits, partition="iid")
    assert key(plain, "fedavg") == "1532eb8ccb2a5156", "as ever"
    assert key(plain, "second-opinion") == "68dda583cddfb3bb", "as ever"
    assert key(by_patient, "fedavg") == "01a9ecd637143790", "as ever"
    before = {"second-opinion": "bc7d3b0c5341ce3d", "second-opinion-taught": "f8458c085e3ebac0"}
    before |= {"second-opinion@alone": "a2d5fbd0272dc8aa"}
    assert all(key(by_patient, name) != known for name, known in before.items())
