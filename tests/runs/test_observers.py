"""Events reach those who have a method for them; the time left follows from the work."""

from __future__ import annotations

import pytest

from fedekd.runs.eta import Eta
from fedekd.runs.observers import HANDLERS, ClientTrained, Note, Observer, ObserverGroup


def test_every_event_has_a_handler():
    assert list(HANDLERS.values()) == [
        "on_runs_planned", "on_run_started", "on_client_trained", "on_round_measured", "on_run_finished",
        "on_run_failed", "on_note",
    ]  # fmt: skip


def test_an_observer_sees_what_it_has_a_method_for():
    class Listening(Observer):
        def __init__(self):
            self.lines = []

        def on_note(self, event):
            self.lines.append(event.line)

    both = [Listening(), Listening()]
    group = ObserverGroup([Observer(), *both])
    group.observe(ClientTrained(0, "a", 10))
    group.observe(Note("hello"))
    assert [each.lines for each in both] == [["hello"]] * 2


def test_the_pace_is_that_of_the_work_since_the_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    eta = Eta()
    eta.total = 100
    eta.skip(20)
    assert eta.seconds() is None
    now[0] += 1000  # loading
    eta.advance(10)
    assert eta.seconds() is None, "one point makes no pace"
    now[0] += 5
    eta.advance(10)
    assert eta.seconds() == pytest.approx(30)
    eta.advance(60)
    assert eta.seconds() is None, "nothing is left"
