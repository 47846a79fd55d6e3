"""What validation rows choose: the round of a training, and of several trainings the one that a client would take.

No test row takes part in a choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedekd.runs.records import ChosenRound, ClientRow, Record
from fedekd.runs.row_results import rows_of
from fedekd.settings import ChosenBy
from fedekd.units import describe

FEW = 30  # validation rows, under which nothing is chosen by them


@dataclass(frozen=True, eq=False)
class Option:
    """One way to train, at one of its rounds, for one client."""

    label: str
    round: int
    value: float
    val: float = math.nan
    """The metric on the validation rows."""
    val_loss: float = math.nan
    rows: np.ndarray | None = None
    """Of each test row: 1 where the answer is right, or its error; where Δ is in another metric, what was answered."""
    val_error: float = 0.0
    """The standard error of ``val_loss``."""


def last_round(record: Record, position: int, folder: Path | None = None) -> Option:
    client, rows = record["clients"][position], rows_of(record, position, folder)
    val, loss, error = client.get("val", math.nan), client.get("val_loss", math.nan), client.get("val_error") or 0.0
    return Option(record["label"], record["params"]["rounds"], client["value"], val, loss, rows, error)


def option(record: Record, position: int, folder: Path | None = None) -> Option:
    """A client's result at the last round, or at that of its lowest validation loss where that is clearly better.

    Clearly: by more than one standard error of the metric on the validation rows. The loss alone would choose too
    early: accuracy goes on rising while a model grows too sure of itself, and what a site can do alone would seem less
    than it is.
    """
    client, last = record["clients"][position], last_round(record, position, folder)
    best = client.get("chosen")
    if best is not None and chooses_rounds(record):  # what the record tells is of that round already
        return replace(last, round=best["round"])
    if best is None or "val" not in client or not _clearly_better(best, client, record["metric"]):
        return last
    rows = rows_of(record, position, folder, chosen=True)
    error = best["val_error"] or 0.0
    return Option(last.label, best["round"], best["value"], best["val"], best["val_loss"], rows, error)


def chooses_rounds(record: Record) -> bool:
    return bool(record["params"].get("choose_rounds"))


def _clearly_better(best: ChosenRound, client: ClientRow, metric: str) -> bool:
    if client["n_val"] < FEW:
        return False
    about = describe(metric)
    if about.share and about.higher_is_better:  # the standard error of an accuracy, near enough that of the others
        error = math.sqrt(max(best["val"] * (1 - best["val"]), 0.0) / client["n_val"])
        return best["val"] > client["val"] + error
    return best["val_loss"] + (best["val_error"] or 0.0) < client["val_loss"]


def choice_of(records: Sequence[Record]) -> ChosenBy:
    """What chooses the best alone, which is the same for all records that were read together."""
    return records[0].get("chosen_by", "metric") if records else "metric"


def best_on_validation(
    options: Sequence[Option], n_val: int, higher_is_better: bool = True, by: ChosenBy = "metric"
) -> Option:
    """What a client's validation rows choose; the first of all, such as plain Local, where they are few.

    ``metric``: the best in the metric; of equals the first of all, if it is among them, else that of the lowest loss.
    ``loss``: the lowest loss, or the first of all where that is within one standard error of it; docs/metrics.md says
    what either makes of the best alone.
    """
    first, of_loss = options[0], by == "loss"
    known = [one for one in options if math.isfinite(one.val_loss if of_loss else one.val)]
    if n_val < FEW or not known:
        return first
    if not of_loss:
        sign = 1 if higher_is_better else -1
        return max(known, key=lambda one: (sign * one.val, one is first, math.isfinite(one.val_loss), -one.val_loss))
    lowest = min(known, key=lambda one: one.val_loss)
    return first if first.val_loss <= lowest.val_loss + lowest.val_error else lowest
