"""Which records of a folder still hold: a later run replaces an earlier one of the same name.

A run is trained again when its data, models or method were changed meanwhile. Then its folder holds both, and means
over both, or a difference between the two, would be of nothing that exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedekd.runs.aggregate import shared_settings
from fedekd.runs.records import Record


def current(records: Sequence[Record]) -> list[Record]:
    """Without what was replaced, in the order of the records, which is that in which they ended.

    Of a method of the user's own only runs with its newest code hold; of all runs of one place (dataset, split, seed,
    settings and label) the last; and where Local was trained again there, only what is measured against the new one.
    """
    unique = list({record["key"]: record for record in records}.values())  # two processes may do a run twice
    code = {(r["dataset"], r["label"]): r["code"] for r in unique if "code" in r}
    of_code = [r for r in unique if "code" not in r or r["code"] == code[r["dataset"], r["label"]]]
    last = {_place(r, r["label"]): r for r in of_code}
    alone: dict[tuple[Any, ...], list[Record]] = {}
    for r in of_code:
        if r["method"] == "local":
            alone.setdefault(_place(r, ""), []).append(r)
    again = {place: _values(some[-1]) for place, some in alone.items() if len(some) > 1}
    kept = {r["key"] for r in last.values() if _against(r) == again.get(_place(r, ""), _against(r))}
    return [r for r in unique if r["key"] in kept]


def _place(record: Record, label: str) -> tuple[Any, ...]:
    fold = record["partition"].get("fold")
    return (label, record["dataset"], record["alpha"], record["seed"], fold, *shared_settings(record))


def _values(local: Record) -> list[str]:
    """As text, in which a metric that is not defined equals itself."""
    return [repr(client["value"]) for client in local["clients"]]


def _against(record: Record) -> list[str]:
    return [repr(client["local"]) for client in record["clients"]]
