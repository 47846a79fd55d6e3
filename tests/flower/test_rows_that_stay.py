"""A method that asks for the test rows is refused at a site, before it has joined."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.engines.job import Job, Training
from fedekd.errors import FedekdError
from fedekd.flower.protocol.layouts import layouts
from fedekd.methods import Method, Remember, Train


@dataclass(frozen=True)
class Peeking(Method):
    """Trains on the rows that it is tested on, in a round or before it answers"""

    late: bool = False
    name = "peeking"

    def steps(self, round):
        return (Train(("private",), self.loss, split="train" if self.late else "test"),)

    def personalise(self):
        return (Remember(lambda batch: {"seen": batch.y}, split="test"),)

    def loss(self, batch):
        return batch.supervised("private")


@pytest.mark.parametrize("late", [False, True])
def test_no_step_reads_the_test_rows(images, late):
    with pytest.raises(FedekdError, match="'peeking': a step asks for the split 'test'; there are train, val, public"):
        layouts(Job(images, Peeking(late), 0, Training(2, 1, 16, 1e-3)))
