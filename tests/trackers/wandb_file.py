"""Reads an offline run of Weights & Biases: protobuf messages in a log of LevelDB's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def messages(data: bytes) -> Iterator[bytes]:
    place, whole = HEADER, b""
    while place + 7 <= len(data):
        room = BLOCK - place % BLOCK
        if room < 7:  # the rest of a block is too short for another piece
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def read(file: Path) -> tuple[str, dict[str, list[tuple[int, Any]]]]:
    """The run's name, and by tag what was logged and at which step; the summary has the step None."""
    from wandb.proto import wandb_internal_pb2

    name, points = "", {}
    for message in messages(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name
        elif kind == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = items.pop("_step", record.history.step.num)
            for tag, value in items.items():
                if not tag.startswith("_") and not tag.endswith(("/bins", "/_type")):
                    points.setdefault(tag.removesuffix("/values"), []).append((step, value))
        elif kind == "summary":
            for item in record.summary.update:
                tag = "/".join(item.nested_key) or item.key
                if tag.startswith("final"):
                    points[tag] = [(None, json.loads(item.value_json))]
    return name, points
