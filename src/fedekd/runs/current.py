"""Which records of a folder still hold: a later run replaces an earlier one of the same name.

A run is trained again when its data, models or method were changed meanwhile. Then its folder holds both, and means
over both, or a difference between the two, would be of nothing that exists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from fedekd.runs.aggregate import shared_settings
from fedekd.runs.records import Record
from fedekd.runs.store import Store

if TYPE_CHECKING:
    from fedekd.runs.plan import RunSpec


def current(records: Sequence[Record]) -> list[Record]:
    """Without what was replaced, in the order of the records: that in which runs ended, or were asked for again.

    Of the user's own data and methods only runs with the newest hold; of all runs of one place (dataset, split, seed,
    settings and label) the last; and where Local was trained again there, only what is measured against the new one.
    """
    unique: dict[str, Record] = {}
    for record in records:
        unique.pop(record["key"], None)
        unique[record["key"]] = record
    newest = _newest(list(unique.values()))
    last = {_place(r, r["label"]): r for r in newest}
    alone: dict[tuple[Any, ...], list[Record]] = {}
    for r in newest:
        if r["method"] == "local":
            alone.setdefault(_place(r, ""), []).append(r)
    again = {place: _values(some[-1]) for place, some in alone.items() if len(some) > 1}
    kept = {r["key"] for r in last.values() if _against(r) == again.get(_place(r, ""), _against(r))}
    return [r for r in unique.values() if r["key"] in kept]


def asked_again(runs: Collection[RunSpec], store: Store) -> dict[str, Record]:
    """The records of runs that are done. They hold again where later ones had replaced them, as after an edit that was
    taken back; and beside new runs they tell what those of an earlier version did not."""
    every = store.records()
    holding, by_key = {r["key"] for r in current(every)}, {r["key"]: r for r in every}
    known, more = dict[str, Record](), any(run.key not in by_key for run in runs)
    for run in runs:
        if run.key not in by_key:
            continue
        before = by_key[run.key]
        known[run.key] = record = cast("Record", {**before, **dict(run.own if more else ())})
        if run.key not in holding or record != before:
            store.add({name: value for name, value in record.items() if name != "chosen_by"}, again=True)
    return known


def _newest(records: Sequence[Record]) -> list[Record]:
    """Of each dataset its newest data, of each method its newest code; a record that does not tell counts as those."""
    newest: dict[tuple[str, ...], str] = {}
    for r in records:
        newest |= dict(_own(r))
    return [r for r in records if all(newest[name] == value for name, value in _own(r))]


def _own(record: Record) -> list[tuple[tuple[str, ...], str]]:
    names: tuple[tuple[Literal["data", "code"], str], ...] = (("data", ""), ("code", record["label"]))
    return [((name, record["dataset"], label), record[name]) for name, label in names if name in record]


def _place(record: Record, label: str) -> tuple[Any, ...]:
    split = record["partition"]["fingerprint"]
    return (label, record["dataset"], record["alpha"], record["seed"], split, *shared_settings(record))


def _values(local: Record) -> list[str]:
    """As text, in which a metric that is not defined equals itself."""
    return [repr(client["value"]) for client in local["clients"]]


def _against(record: Record) -> list[str]:
    return [repr(client["local"]) for client in record["clients"]]
