"""What runs that train together have gone through: each client's test and validation values by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedekd.engines.job import Job, Measured
from fedekd.runs import packing

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

    @classmethod
    def fresh(cls, runs: int) -> History:
        return cls(0.0, [[] for _ in range(runs)], [[] for _ in range(runs)])

    def add(self, round: int, measured: Sequence[Sequence[Measured]]) -> None:
        """What was measured after a round, by run and client."""
        if not self.best:
            self.validation, self.best = [[] for _ in measured], [[None for _ in own] for own in measured]
        self.last = []
        for curve, seen, best, own in zip(self.curves, self.validation, self.best, measured, strict=True):
            curve.append([one.value for one in own])
            rows = [packing.pack(one.errors) for one in own]
            lowest = [min((past[k][1] for past in seen), default=math.inf) for k in range(len(own))]
            for k, one in enumerate(own):
                if one.val_loss < lowest[k]:
                    best[k] = (round, one.value, rows[k])
            seen.append([(one.val_value, one.val_loss, one.val_error) for one in own])
            self.last.append(rows)

    def clients(self, run: int, job: Job) -> list[dict[str, Any]]:
        """What a record says of a run's clients."""
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
                if at != len(curve):
                    rows["chosen"] = packed
            found.append({**row, "rows": rows})
        return found


def _named(values: tuple[float, float, float]) -> dict[str, float | None]:
    val, loss, error = values
    return {"val": val, "val_loss": loss, "val_error": error if math.isfinite(error) else None}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
