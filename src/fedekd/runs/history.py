"""What runs that train together have gone through: each client's test and validation values by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.engines.job import Job, Measured
from fedekd.runs import packing

if TYPE_CHECKING:
    from fedekd.engines.client import Client
    from fedekd.engines.serial import Serial
    from fedekd.engines.stacked import Stacked

Values = list[list[float]]


@dataclass
class History:
    """It survives an interruption with the engine; a checkpoint of before there were validation values lacks them."""

    seconds: float
    curves: list[Values]  # the test metric by run, round and client
    exchange: list[list[dict[str, int]]]  # by run and round
    validation: list[list[list[tuple[float, float, float]]]] = field(default_factory=list)
    """By run, round and client: metric, loss and the loss's standard error."""
    best: list[list[tuple[int, float, str] | None]] = field(default_factory=list)
    """By run and client, of the round with the lowest validation loss: round, test metric and test rows."""
    last: list[list[str]] = field(default_factory=list)
    """By run and client: the test rows of the last round."""
    kept: list[dict[int, Any]] = field(default_factory=list)
    """By run and client, where rounds are chosen: the client's state of that round, as it answered."""

    @classmethod
    def fresh(cls, runs: int) -> History:
        return cls(0.0, [[] for _ in range(runs)], [[] for _ in range(runs)])

    def add(self, round: int, measured: Sequence[Sequence[Measured]]) -> list[list[int]]:
        """What was measured after a round, by run and client; by run, the clients whose best round so far it is."""
        if not self.best:
            self.validation, self.best = [[] for _ in measured], [[None for _ in own] for own in measured]
        self.last, better = [], []
        for curve, seen, best, own in zip(self.curves, self.validation, self.best, measured, strict=True):
            curve.append([one.value for one in own])
            rows = [packing.pack(one.errors) for one in own]
            losses = [[past[k][1] for past in seen if math.isfinite(past[k][1])] for k in range(len(own))]
            better.append([k for k, one in enumerate(own) if one.val_loss < min(losses[k], default=math.inf)])
            for k in better[-1]:
                best[k] = (round, own[k].value, rows[k])
            seen.append([(one.val_value, one.val_loss, one.val_error) for one in own])
            self.last.append(rows)
        return better

    def keep(self, worker: Serial | Stacked, better: Sequence[Sequence[int]]) -> None:
        """The states of these clients by run, in place of those of earlier rounds."""
        self.kept = self.kept or [{} for _ in better]
        for run, positions in enumerate(better):
            self.kept[run] |= zip(positions, worker.states_of(run, positions), strict=True)

    def give_back(self, run: int, clients: Sequence[Client]) -> None:
        """Clients as the last round left them become what they were in their chosen rounds."""
        for k, state in self.kept[run].items() if self.kept else ():
            best, last = self.best[run][k], len(self.curves[run])
            if best is not None and best[0] != last:
                clients[k].restore(state)

    def clients(self, run: int, job: Job) -> list[dict[str, Any]]:
        """What a record says of a run's clients: of the last round, or of their chosen ones where that is asked for."""
        found = []
        curve, seen = self.curves[run], self.validation[run]
        for k, value in enumerate(curve[-1]):
            row: dict[str, Any] = {"value": value}
            rows = {"last": self.last[run][k]}
            if math.isfinite(seen[-1][k][1]):
                row |= _named(seen[-1][k])
            best = self.best[run][k]
            if best is not None and len(seen) == len(curve):
                at, then, packed = best
                row["chosen"] = {"round": at, "value": then, **_named(seen[at - 1][k])}
                row["curve"] = {
                    "value": [_short(values[k]) for values in curve],
                    "val": [_short(values[k][0]) for values in seen],
                    "val_loss": [_short(values[k][1]) for values in seen],
                }
                if job.training.choose_rounds:
                    row |= {"value": then, **_named(seen[at - 1][k])}
                    rows["last"] = packed
                elif at != len(curve):
                    rows["chosen"] = packed
            found.append({**row, "rows": rows})
        return found


def _named(values: tuple[float, float, float]) -> dict[str, float | None]:
    val, loss, error = values
    return {"val": val, "val_loss": loss, "val_error": error if math.isfinite(error) else None}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
