"""Very many clients, few of whom take part in a round: what is kept of them, and that it changes no number."""

from __future__ import annotations

import pytest
import torch

from fedekd import methods
from fedekd.data import federate
from fedekd.engines import stack
from fedekd.engines.member_rows import MemberRows
from fedekd.engines.stacked import Stacked
from stacking import compare
from tiny import job

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def five(digits):
    return federate(digits, clients=5, alpha=0.5, seed=2)


@pytest.mark.parametrize(
    "name", ["fedekd", "fedavg", "fedprox", "scaffold", "ditto", "fedekd-feature", "apfl-adaptive"]
)
def test_rows_of_their_own_change_no_number(five, monkeypatch, name):
    monkeypatch.setattr(stack, "MANY", 2)
    compare([job(five, methods.get(name), participation=0.4)])


def test_memory_grows_with_those_that_take_part(five, monkeypatch):
    monkeypatch.setattr(stack, "MANY", 2)
    engine = Stacked([job(five, methods.get("scaffold"), participation=0.2)])
    rows = engine.stacks[0].weights["private"]["head.weight"]
    assert isinstance(rows, MemberRows)
    assert rows.used == rows.shared == 1
    engine.round()
    assert rows.used == 2
    engine.evaluate()
    assert rows.used == 2, "who only answers has no row of its own"


def test_a_checkpoint_holds_what_is_kept(five, monkeypatch, tmp_path):
    monkeypatch.setattr(stack, "MANY", 2)
    one = job(five, methods.get("scaffold"), participation=0.4)
    whole, before, after = Stacked([one]), Stacked([one]), Stacked([one])
    before.round()
    torch.save(before.state(), tmp_path / "state")
    after.restore(torch.load(tmp_path / "state", weights_only=True))
    for engine in (whole, whole, after):
        engine.round()
    assert after.evaluate() == whole.evaluate()
    for ours, theirs in zip(whole.clients_of(0), after.clients_of(0), strict=True):
        torch.testing.assert_close(ours.state(), theirs.state(), rtol=0, atol=0)


def test_rows_read_and_write_as_a_tensor_does():
    torch.manual_seed(0)
    starts = torch.randn(2, 3)
    rows, plain = MemberRows(starts, [0, 1, 0, 1, 0], CPU, CPU), starts[torch.tensor([0, 1, 0, 1, 0])]
    for at in ([3, 1], [1, 4], [0, 1, 2, 3, 4]):
        new = torch.randn(len(at), 3)
        rows[torch.tensor(at)] = new
        plain[torch.tensor(at)] = new
        assert torch.equal(rows[torch.arange(5)], plain)
        assert torch.equal(rows[2], plain[2])
    kept = rows.part(torch.tensor([4, 0]))
    rows[torch.tensor([0])] = torch.zeros(3)
    assert torch.equal(kept[torch.arange(2)], plain[torch.tensor([4, 0])]), "a part is its own"
    assert rows.shape == (5, 3)
