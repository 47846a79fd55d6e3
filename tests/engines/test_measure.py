"""What is measured after a round: test and validation rows, the same in both engines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedekd import methods
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from tiny import tiny_private, tiny_proxy

TRAINING = Training(rounds=2, epochs=1, batch_size=16, lr=3e-3)


@pytest.mark.parametrize("task", ["images", "tables"])
@pytest.mark.parametrize("name", ["fedekd", "ditto", "fedrod", "fedavg-tuned"])
def test_both_engines_measure_the_same(request, task, name):
    federation, method = request.getfixturevalue(task), methods.get(name)
    if federation.dataset.task not in method.tasks:
        pytest.skip("not defined for it")
    job = Job(federation, method, 0, TRAINING, tiny_private, tiny_proxy)
    serial, stacked = Serial(job), Stacked([job])
    serial.round()
    stacked.round()
    (one,), (other,) = serial.measure(), stacked.measure()
    assert [m.value for m in one] == serial.evaluate()[0]
    assert [m.val_value for m in one] == serial.evaluate("val")[0]
    assert [m.value for m in other] == stacked.evaluate()[0]
    for a, b, client in zip(one, other, federation.clients, strict=True):
        assert b.val_loss == pytest.approx(a.val_loss, rel=1e-3)
        assert b.val_value == pytest.approx(a.val_value, rel=1e-2)
        assert np.mean(a.errors != b.errors) < 0.1 or a.errors == pytest.approx(b.errors, rel=1e-2, abs=1e-2)
        assert (len(a.errors), len(a.val_losses)) == (len(client.test), len(client.val))
        right = 1 - a.errors.mean() if task == "images" else np.sqrt(np.square(a.errors).mean())
        assert a.value == pytest.approx(right, rel=1e-5)
        assert a.val_loss == pytest.approx(a.val_losses.mean())


def test_a_client_without_validation_rows_has_no_value_there(images):
    first = replace(images.clients[0], val=np.empty(0, np.int64))
    federation = replace(images, clients=(first, *images.clients[1:]))
    for engine in (Serial, lambda job: Stacked([job])):
        found = engine(Job(federation, methods.get("local"), 0, TRAINING, tiny_private, tiny_proxy)).measure()[0]
        assert math.isnan(found[0].val_value)
        assert math.isnan(found[0].val_loss)
        assert math.isfinite(found[1].val_loss)
