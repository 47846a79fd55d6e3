"""Jobs for the dry pass, and the one line that it ends with."""

from __future__ import annotations

from dataclasses import replace

from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from tiny import tiny_private, tiny_proxy

TRAINING = Training(rounds=2, epochs=1, batch_size=16, lr=3e-3)


def job(federation, method, private=tiny_private, **training):
    return Job(federation, method, 0, replace(TRAINING, **training), private, tiny_proxy)


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
