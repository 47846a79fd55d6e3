"""What must repeat to the bit when a run is done again."""

from __future__ import annotations

from pathlib import Path

from fedekd.runs.store import read_records


def numbers(record) -> dict:
    """Everything but the clock."""
    return {name: value for name, value in record.items() if name not in ("seconds", "finished")}


def numbers_in(folder: str | Path) -> dict[str, dict]:
    """Of a folder's records, by key."""
    return {record["key"]: numbers(record) for record in read_records(Path(folder) / "results.jsonl")}
