"""Jobs for the dry pass, and the one line that it ends with."""

from __future__ import annotations

import tiny
from fedekd.engines.serial import Serial
from tiny import tiny_private


def job(federation, method, private=tiny_private, **training):
    return tiny.job(federation, method, private=private, **{"epochs": 1, **training})


def nothing_is_trained(monkeypatch):
    def never(self):
        raise AssertionError("a round was begun")

    monkeypatch.setattr(Serial, "round", never)


def one_line(error, *words):
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 400
    for word in words:
        assert word in line
    return line
