"""Rows of members that take turns, brought to the device together and moved meanwhile: no number changes by it.

A CPU has one memory. That rows lie elsewhere is said by a device of another name, ``cpu:0``, with the same thread and
the same order of work as on a GPU.
"""

from __future__ import annotations

import itertools
import random
import time

import pytest
import torch

from fedekd import methods
from fedekd.data import federate
from fedekd.engines import chunk, client_stack, forward, groups, row_mover, stack
from fedekd.engines.member_rows import AtWork, MemberRows
from fedekd.engines.stacked import Stacked
from stacking import compare
from tiny import job

HERE, ELSEWHERE = torch.device("cpu"), torch.device("cpu", 0)
ROUNDS = 3


@pytest.fixture(scope="module")
def five(digits):
    return federate(digits, clients=5, alpha=0.5, seed=2)


@pytest.fixture
def slow(monkeypatch):
    """Storing takes a while, so that what comes next finds it under way."""
    store = row_mover.RowMover.store

    def late(self, *args):
        time.sleep(0.005)
        store(self, *args)

    monkeypatch.setattr(row_mover.RowMover, "store", late)


@pytest.fixture(params=[HERE, ELSEWHERE], ids=["on the device", "elsewhere"])
def brought(request, monkeypatch):
    """Stacks bring the rows of those at work from there."""

    def begin(bring: bool = True) -> None:
        monkeypatch.setattr(stack, "MANY", 2)
        monkeypatch.setattr(stack, "worth_bringing", lambda *_: bring)
        for module in (forward, groups, client_stack):
            monkeypatch.setattr(module, "home_of", lambda *_: request.param)

    begin()
    return begin


def rounds_of(one, count=ROUNDS, measured=False):
    """An engine after some rounds, and what was measured after all but the first of them."""
    engine, values = Stacked([one], chunk=3), []
    for number in range(count):
        engine.round()
        values.append(engine.evaluate() if measured and number else None)
    return engine, values


def assert_same(ours, theirs):
    for a, b in zip(ours.clients_of(0), theirs.clients_of(0), strict=True):
        torch.testing.assert_close(a.state(), b.state(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedekd", "scaffold", "fedrep", "knnper"])
def test_bringing_rows_changes_no_number(five, brought, slow, name):
    one = job(five, methods.get(name), participation=0.6, rounds=ROUNDS, epochs=1)
    with_it, _ = rounds_of(one)
    assert with_it.stacks[0].brings
    measured, values = rounds_of(one, measured=True)
    brought(False)
    without, expected = rounds_of(one, measured=True)
    assert not without.stacks[0].brings
    assert values == expected
    assert with_it.evaluate() == expected[-1]
    assert_same(with_it, without)
    assert_same(measured, without)


def test_the_serial_engine_agrees(five, brought):
    compare([job(five, methods.get("scaffold"), participation=0.6)])


def test_a_checkpoint_has_what_is_under_way(five, brought, slow, tmp_path):
    one = job(five, methods.get("scaffold"), participation=0.6, rounds=ROUNDS, epochs=1)
    (engine, _), after = rounds_of(one, 1), Stacked([one], chunk=3)
    torch.save(engine.state(), tmp_path / "state")
    after.restore(torch.load(tmp_path / "state", weights_only=True))
    for _ in range(2):
        engine.round()
        after.round()
    assert after.evaluate() == engine.evaluate()
    assert_same(engine, after)
    assert_same(engine, rounds_of(one)[0])


@pytest.mark.parametrize("brought", [ELSEWHERE], ids=["elsewhere"], indirect=True)
def test_rows_that_do_not_fit_stay_where_they_are(five, brought, monkeypatch):
    one = job(five, methods.get("fedekd"), participation=0.6, rounds=ROUNDS, epochs=1)
    (whole, _), tries, refused = rounds_of(one), itertools.count(1), []
    fetch = row_mover.RowMover.fetch

    def sometimes(self, *args):
        if next(tries) % 3 == 0:
            refused.append(args)
            raise torch.OutOfMemoryError("no room")
        return fetch(self, *args)

    monkeypatch.setattr(row_mover.RowMover, "fetch", sometimes)
    with_errors, _ = rounds_of(one)
    assert refused
    assert_same(with_errors, whole)


@pytest.mark.parametrize("home", [HERE, ELSEWHERE])
def test_rounds_of_any_members_read_and_write_as_a_tensor_does(home, slow, monkeypatch):
    monkeypatch.setattr(row_mover, "PIECE", 32)  # two rows
    draw = random.Random(0)
    torch.manual_seed(0)
    starts, which = torch.randn(2, 4), [k % 2 for k in range(12)]
    rows, plain = MemberRows(starts, which, home, HERE), starts[torch.tensor(which)]
    turns = [sorted(draw.sample(range(12), 4)) for _ in range(12)]
    assert any(set(a) & set(b) for a, b in itertools.pairwise(turns))
    for number, members in enumerate(turns):
        rows.bring(AtWork(members, 12, HERE))
        if number + 1 < len(turns) and number % 4 != 3:  # sometimes nobody says who comes next, sometimes others come
            rows.fetch_ahead(AtWork(turns[number + 1] if number % 4 != 2 else turns[0], 12, HERE))
        assert torch.equal(rows[torch.tensor(members)], plain[members])
        assert torch.equal(rows[members[2]], plain[members[2]])
        some = torch.tensor(members[:3])
        if number % 5 != 4:  # sometimes nothing is written
            new = torch.randn(3, 4)
            rows[some], plain[some] = new, new
        if number == 5:
            copy, saved = rows.part(torch.arange(12)), rows.state()
            assert torch.equal(copy[torch.arange(12)], plain), "a copy in the middle of a round"
            assert torch.equal(saved["pool"][saved["row"]], plain)
        rows.leave()
        if number % 3 == 1:
            assert torch.equal(rows[torch.arange(12)], plain), "between rounds all can be read"
        if number == 6:
            everyone = torch.randn(12, 4)
            rows[torch.arange(12)], plain = everyone, everyone.clone()
    state = rows.state()
    assert torch.equal(state["pool"][state["row"]], plain)
    other = MemberRows(starts[:0], [], home, HERE)
    other.restore(state)
    assert torch.equal(other[torch.arange(12)], plain)


@pytest.mark.parametrize("home", [HERE, ELSEWHERE])
def test_whoever_is_not_at_work_is_not_read(home):
    rows = MemberRows(torch.zeros(1, 3), [0] * 6, home, HERE)
    rows.bring(AtWork([1, 4], 6, HERE))
    with pytest.raises(IndexError):
        rows[torch.tensor([1, 2])]


def test_a_checkpoint_has_no_room_for_those_who_never_came(tmp_path):
    rows = MemberRows(torch.zeros(1, 1000), [0] * 100, ELSEWHERE, HERE)
    rows.bring(AtWork([3, 5], 100, HERE))
    rows[torch.tensor([3, 5])] = torch.ones(2, 1000)
    rows.leave()
    torch.save(rows.state(), tmp_path / "state")
    assert len(rows.pool) == 101
    assert (tmp_path / "state").stat().st_size < 10 * rows.pool[0].nbytes


def test_a_part_of_many_rows_can_be_written():
    rows = MemberRows(torch.zeros(1, 2), [0] * 8, HERE, HERE)
    rows[torch.arange(6)] = torch.ones(2)
    part = rows.part([0, 7])
    part[torch.tensor([1])] = torch.full((2,), 3.0)
    assert torch.equal(part[torch.arange(2)], torch.tensor([[1.0, 1.0], [3.0, 3.0]]))


def test_where_training_lacks_room_rows_are_no_longer_brought(five, brought, monkeypatch):
    one = job(five, methods.get("scaffold"), participation=0.6, rounds=ROUNDS, epochs=1)
    (whole, _), tries = rounds_of(one), []
    train = chunk.Chunk.train

    def full(self):
        tries.append(self.engine.brings)
        if len(tries) == 3:
            raise torch.OutOfMemoryError("no room")
        train(self)

    monkeypatch.setattr(chunk.Chunk, "train", full)
    engine, _ = rounds_of(one)
    assert tries[2]
    assert not any(tries[3:])
    assert engine.stacks[0].limit == 3
    assert_same(engine, whole)
