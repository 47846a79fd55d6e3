"""What every tracker is told: a run becomes scalars and histograms by round, whatever the package that stores them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedekd.errors import FedekdError
from fedekd.runs.observers import Observer, RoundMeasured, RunFinished, RunsPlanned, RunStarted, Trust
from fedekd.runs.records import FIGURES, Record
from fedekd.trackers.experiment import Experiment, tags


class Sink(Protocol):
    """One run in a tracker. Rounds count from 1."""

    def log(self, scalars: dict[str, float], histograms: dict[str, Trust], round: int) -> None: ...
    def end(self, params: dict[str, Any], scalars: dict[str, float], round: int) -> None: ...
    def abandon(self) -> None: ...  # the run stops here, and may go on later


class Backend(Protocol):
    where: str
    """How to look at what is logged."""

    def has(self, label: str, seed: int) -> bool:
        """Whether a run was logged to its end."""

    def open(self, label: str, seed: int, round: int) -> Sink:
        """A run that goes on in ``round``: what an interrupted process logged of this and later rounds is void."""


class Tracker(Observer):
    """An observer that passes events on to a tracker. A failure there costs a line and the log, never the training."""

    def __init__(self, name: str, experiment: Experiment, folder: Path, quiet: bool = False) -> None:
        self.name, self.experiment, self.folder, self.quiet = name, experiment, folder, quiet
        self.backend: Backend | None = None
        self.planned: set[tuple[str, int]] = set()
        self.sinks: dict[tuple[str, int], Sink] = {}

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self.sinks.values():
            self._try(sink.abandon)
        self.sinks.clear()

    def on_runs_planned(self, event: RunsPlanned) -> None:
        """Connect before anything is trained: what is wrong now, the user can mend."""
        self.planned = {(label, seed) for label, seed, _ in event.runs}
        try:
            self.backend = import_module(f"fedekd.trackers.{self.name}").connect(self.experiment, self.folder)
        except FedekdError:
            raise
        except Exception as error:
            raise FedekdError(f"--log-to {self.name}: {in_a_line(error)}") from None
        if self.backend and not self.quiet:
            print(f"{self.name}: {self.backend.where}", file=sys.stderr)

    def on_run_started(self, event: RunStarted) -> None:
        """Open the run while its clock stands still; one of a stack, which has another label, when it is measured."""
        if (event.label, event.seed) in self.planned:
            self._try(self._sink, event.label, event.seed, event.resumed + 1)

    def on_round_measured(self, event: RoundMeasured) -> None:
        self._try(self._measured, event)

    def on_run_finished(self, event: RunFinished) -> None:
        self._try(self._catch_up if event.cached else self._finish, event.record)

    def _measured(self, event: RoundMeasured) -> None:
        names = tags(event.clients)
        gated = {names[client]: weights for client, weights in (event.trust or {}).items() if weights}
        scalars = {f"metric/{names[client]}": value for client, value in event.clients.items()}
        scalars |= {f"trust_mean/{name}": weights["mean"] for name, weights in gated.items()}
        histograms = {f"trust/{name}": weights for name, weights in gated.items()}
        self._sink(event.label, event.seed, event.round).log(finite(scalars), histograms, event.round)

    def _finish(self, record: Record) -> None:
        names = tags(client["id"] for client in record["clients"])
        scalars = {
            f"final_{what}/{names[client['id']]}": client[what]
            for what in ("value", "local", "delta")
            for client in record["clients"]
        } | {f"final/{what}": record[what] for what in FIGURES}
        rounds = record["params"]["rounds"]
        sink = self._sink(record["label"], record["seed"], rounds)
        del self.sinks[record["label"], record["seed"]]
        own = {"label": record["label"], "seed": record["seed"], "key": record["key"]}
        sink.end({**self.experiment.params, **record["params"], **own}, finite(scalars), rounds)

    def _catch_up(self, record: Record) -> None:
        """A run that ended before the tracker was asked for is logged from what it left."""
        label, seed = record["label"], record["seed"]
        assert self.backend is not None
        if self.backend.has(label, seed):
            return
        from fedekd.runs import details

        found = details.read(self.folder, {record["key"]}).get(record["key"])
        names = [client["id"] for client in record["clients"]]
        trust = {entry["round"]: entry["clients"] for entry in found["trust"]} if found else {}
        self._sink(label, seed, 1)
        rounds = found.get("rounds", range(1, len(found["curve"]) + 1)) if found else []
        for round, values in zip(rounds, found["curve"] if found else [], strict=True):
            seen: dict[str, Any] = dict(zip(names, trust.get(round, []), strict=False))
            self._measured(RoundMeasured(label, seed, round, dict(zip(names, values, strict=True)), seen))
        self._finish(record)

    def _sink(self, label: str, seed: int, round: int) -> Sink:
        assert self.backend is not None
        if (label, seed) not in self.sinks:
            self.sinks[label, seed] = self.backend.open(label, seed, round)
        return self.sinks[label, seed]

    def _try(self, act: Callable[..., object], *arguments: Any) -> None:
        if self.backend is None:
            return
        try:
            act(*arguments)
        except Exception as error:
            self.backend = None
            print(f"{self.name}: {in_a_line(error)}; nothing more is logged, the training goes on", file=sys.stderr)


def finite(scalars: dict[str, float]) -> dict[str, float]:
    """The finite numbers: others no chart can show, and some stores refuse them."""
    return {name: float(value) for name, value in scalars.items() if math.isfinite(value)}


def in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
