"""Rows of one group, such as a patient: batches name them alike in both engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedekd.data import federate
from fedekd.dataset import RowNames
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.methods import Batch, Exchange, Method, Remember, Train
from tiny import job


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
