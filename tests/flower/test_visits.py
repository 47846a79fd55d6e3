"""A method's steps, cut at its exchanges: nothing lost, nothing moved, one message for each exchange."""

from __future__ import annotations

import pytest

from fedekd import methods
from fedekd.engines.schedule import numbered
from fedekd.flower.protocol.visits import rounds_alone, visits
from fedekd.methods.base import Exchange, Train

ROUNDS = 4
NAMES = [*methods.known()]


@pytest.mark.parametrize("name", NAMES)
def test_the_visits_in_a_row_are_the_simulation(name):
    method = methods.get(name)
    simulated = [(r, step, again) for r in range(ROUNDS) for step, again in numbered(method.steps(r))]
    visited = []
    for visit in visits(method, ROUNDS):
        visited += visit.work
        visited += [(visit.round, step, 0) for step in visit.sends]
    assert visited == simulated


@pytest.mark.parametrize("name", NAMES)
def test_a_visit_receives_what_the_one_before_sent(name):
    row = visits(methods.get(name), ROUNDS)
    assert [v.number for v in row] == list(range(len(row)))
    assert (row[0].receives, row[0].answered) == ((), None)
    assert (row[-1].sends, row[-1].round) == ((), None)
    assert [v.last for v in row] == [False] * (len(row) - 1) + [True]
    assert [(v.receives, v.answered) for v in row[1:]] == [(v.sends, v.round) for v in row[:-1]]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "constant" and not n.startswith("local")])
def test_one_message_for_each_round_and_one_more(name):
    """Some exchange nothing in the first round, in which everybody trains alone."""
    method = methods.get(name)
    rounds = [r for r in range(ROUNDS) if any(isinstance(step, Exchange) for step in method.steps(r))]
    assert len(rounds) in (ROUNDS, ROUNDS - 1)
    assert len(visits(method, ROUNDS)) == len(rounds) + 1


@pytest.mark.parametrize("name", ["local", "constant"])
def test_without_an_exchange_there_is_one_visit(name):
    (only,) = visits(methods.get(name), ROUNDS)
    assert only.sends == ()
    assert len(only.work) == (ROUNDS if name == "local" else 0)


def test_fedekd_as_algorithm_1():
    """First the proxy is distilled; then each visit updates the private model of one round, the proxy of the next."""
    row = visits(methods.get("fedekd"), 2)
    assert [[(r, s.roles) for r, s, _ in v.work if isinstance(s, Train)] for v in row] == [
        [(0, ("proxy",))],
        [(0, ("private",)), (1, ("proxy",))],
        [(1, ("private",))],
    ]


def test_warmup_shifts_the_private_update_before_the_exchange():
    row = visits(methods.get("fedekd", warmup=1), 2)
    assert [[(r, s.roles) for r, s, _ in v.work if isinstance(s, Train)] for v in row] == [
        [(0, ("private",)), (0, ("proxy",))],
        [(1, ("proxy",))],
        [(1, ("private",))],
    ]


@pytest.mark.parametrize(("rounds", "count"), [(1, 2), (3, 4), (10, 11), (5, 1), (2, 7)])
def test_training_alone_is_spread_and_ends_complete(rounds, count):
    done = [rounds_alone(v, count, rounds) for v in range(count)]
    assert done[-1] == rounds
    assert done == sorted(done)
    assert max(b - a for a, b in zip([0, *done], done, strict=False)) <= -(-rounds // count)


def named(row):
    return [([step.name for step in v.receives], [step.name for step in v.sends]) for v in row]


def test_exchanges_in_a_row_are_one_visit():
    row = visits(methods.get("toys:Twice"), 2)
    assert named(row) == [
        ([], ["private", "control"]),
        (["private", "control"], ["private", "control"]),
        (["private", "control"], []),
    ]
    assert [v.rounds for v in row] == [(0,), (0, 1), (1,)]


def test_what_is_sent_from_the_model_that_an_answer_went_into_waits_for_it():
    row = visits(methods.get("toys:InARow"), 1)
    assert named(row) == [([], ["private"]), (["private"], ["shared"]), (["shared"], [])]
    assert row[1].work == ()


def test_a_site_does_the_work_of_its_rounds_alone():
    first, middle, last = visits(methods.get("fedekd"), 2)
    assert middle.rounds == (0, 1)
    assert (middle.of({0}).work, middle.of({0}).sends) == (middle.work[:1], ())
    assert (middle.of({1}).work, middle.of({1}).sends) == (middle.work[1:], middle.sends)
    assert middle.of({0, 1}) == middle
    assert (last.of(()).work, last.of(()).last) == ((), True)
    assert first.of({0}) == first


def test_rounds_without_an_exchange_are_work_of_the_next_visit():
    row = visits(methods.get("toys:Seldom"), 4)
    assert named(row) == [([], ["private"]), (["private"], ["private"]), (["private"], [])]
    assert [v.rounds for v in row] == [(0,), (0, 1, 2), (2, 3)]


def test_a_role_that_is_trained_twice_in_a_round_is_counted():
    (work, *_) = (v.work for v in visits(methods.get("toys:Gradients"), 1))
    assert [again for _, step, again in work if isinstance(step, Train)] == [0, 1]
