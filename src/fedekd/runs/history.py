"""What runs that train together have gone through: each client's test and validation values by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedekd import scores
from fedekd.engines.job import Job, Measured, Training
from fedekd.runs import packing
from fedekd.settings import MANY

if TYPE_CHECKING:
    from fedekd.engines.client import Client
    from fedekd.engines.serial import Serial
    from fedekd.engines.stacked import Stacked

Values = list[list[float]]


@dataclass
class History:
    """It is saved in checkpoints with the engine; those from before there were validation values lack them."""

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
    """By run and client, where its model will be kept: its state in its best round so far, as it answered."""
    rounds: list[int] = field(default_factory=list)
    """After which it was measured; all of them in a checkpoint that does not say so."""
    answers: list[dict[int, Tensor]] = field(default_factory=list)
    """By run and client, where they are asked for: what it answered on the test rows in its best round."""
    training: list[Values] = field(default_factory=list)
    """By run, round and client: the loss on training rows, where that was measured."""

    @classmethod
    def fresh(cls, runs: int) -> History:
        return cls(0.0, [[] for _ in range(runs)], [[] for _ in range(runs)])

    def add(self, round: int, measured: Sequence[Sequence[Measured]], training: Training) -> list[list[int]]:
        """What was measured after a round, by run and client; by run, the clients whose best round so far it is."""
        self.rounds = [*self.measured, round]
        if not self.best:
            self.validation, self.best = [[] for _ in measured], [[None for _ in own] for own in measured]
        self.answers = self.answers or [{} for _ in measured]
        self.training = self.training or [[] for _ in measured]
        self.last, better = [], []
        for run, own in enumerate(measured):
            curve, seen, best = self.curves[run], self.validation[run], self.best[run]
            values = [in_metric(one, training.metric) for one in own]
            curve.append([value for value, _ in values])
            rows = [packing.pack(one.errors) for one in own]
            lowest = self._lowest(run)
            better.append([k for k, one in enumerate(own) if one.val_loss < lowest[k]])
            for k in better[-1]:
                best[k] = (round, values[k][0], rows[k])
                if training.metric or training.choose_rounds:
                    self.answers[run][k] = torch.from_numpy(own[k].answers("test"))
            seen.append([(val, one.val_loss, one.val_error) for one, (_, val) in zip(own, values, strict=True)])
            self.last.append(rows)
            if all(math.isfinite(one.train_loss) for one in own):
                self.training[run].append([_short(one.train_loss) for one in own])
        return better

    def _lowest(self, run: int) -> list[float]:
        """By client: the lowest finite validation loss so far, which is that of its best round."""
        before = dict(zip(self.measured[:-1][::-1], self.validation[run][::-1], strict=False))
        return [math.inf if best is None else before[best[0]][k][1] for k, best in enumerate(self.best[run])]

    @property
    def measured(self) -> list[int]:
        return self.rounds or list(range(1, len(self.curves[0]) + 1))

    def keep(self, worker: Serial | Stacked, better: Sequence[Sequence[int]]) -> None:
        """The states of these clients by run, in place of those of earlier rounds."""
        self.kept = self.kept or [{} for _ in better]
        for run, positions in enumerate(better):
            self.kept[run] |= zip(positions, worker.states_of(run, positions), strict=True)

    def give_back(self, run: int, clients: Sequence[Client], rounds: Sequence[int]) -> None:
        """Clients as the last round left them become what they were in these rounds, where that was kept."""
        for k, state in self.kept[run].items() if self.kept else ():
            if state["round"] == rounds[k] != self.measured[-1]:
                clients[k].restore(state)

    def clients(self, run: int, job: Job, last: Sequence[Measured] = ()) -> list[dict[str, Any]]:
        """What a record says of a run's clients: of the last round, or of their chosen ones where that is asked for.

        ``last``: what was measured after the last round, for what takes more than the metric and the rows.
        """
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
                of_best = _named(seen[self.measured.index(at)][k])
                row["chosen"] = {"round": at, "value": then, **of_best}
                if len(curve[-1]) < MANY:
                    row["curve"] = {
                        "value": [_short(values[k]) for values in curve],
                        "val": [_short(values[k][0]) for values in seen],
                        "val_loss": [_short(values[k][1]) for values in seen],
                        **({} if job.training.measure_every == 1 else {"round": self.measured}),
                    }
                if job.training.choose_rounds:
                    row |= {"value": then, **of_best}
                    rows["last"] = packed
                elif at != self.measured[-1]:
                    rows["chosen"] = packed
            if job.training.metric is None:
                row["rows"] = rows
            if last:
                answers = self.answers[run].get(k) if job.training.choose_rounds else None
                answered = last[k].answers("test") if answers is None else answers.numpy()
                row["scores"] = {score.name: _known(score.of(answered)) for score in scores.of_task(job.task.name)}
                row |= {"floor": _known(_floor(job, k)), **_names_of_rows(job, k)}
            found.append(row)
        return found

    def test_rows(self, run: int, job: Job, last: Sequence[Measured]) -> dict[str, np.ndarray]:
        """What the clients answered, for ``runs.answers``."""
        mean, found = job.federation.target_mean if job.task.name == "regression" else 0.0, {}
        for k, one in enumerate(last):
            chosen = self.answers[run].get(k)
            if chosen is not None:
                found[f"{k}-chosen"] = chosen.numpy() + np.float32(mean)
            kept = job.training.choose_rounds and chosen is not None
            found[f"{k}-last"] = found[f"{k}-chosen"] if kept else one.answers("test") + np.float32(mean)
        return found


def in_metric(one: Measured, metric: str | None) -> tuple[float, float]:
    """The metric on test and validation rows; None: the task's own metric."""
    if metric is None:
        return one.value, one.val_value
    score = scores.SCORES[metric]
    return score.of(one.answers("test")), score.of(one.answers("val")) if len(one.val_losses) else math.nan


def _floor(job: Job, k: int) -> float:
    """The metric of a model that knows no inputs."""
    dataset, split = job.federation.dataset, job.federation.clients[k]
    rows = scores.floor(dataset.y[split.test], dataset.y[split.train], dataset.outputs)
    return scores.SCORES[job.training.metric or job.task.metric].of(rows)


def _names_of_rows(job: Job, k: int) -> dict[str, str]:
    dataset, test = job.federation.dataset, job.federation.clients[k].test
    named = {"groups": dataset.groups, "subgroups": dataset.subgroups}
    return {what: packing.pack_codes(names.codes[test]) for what, names in named.items() if names}


def _known(value: float) -> float | None:
    return _short(value) if math.isfinite(value) else None


def _named(values: tuple[float, float, float]) -> dict[str, float | None]:
    val, loss, error = values
    return {"val": val, "val_loss": loss, "val_error": error if math.isfinite(error) else None}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
