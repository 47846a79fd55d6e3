"""What chooses the best alone when a folder's records are read, in DIR/choice.json; without that file the metric does.

It decides nothing that is trained, so it is neither in a run's key nor in what is stored, but is put on records as they
are read. Whatever is made of them then takes the same choice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast, get_args

from fedekd.errors import FedekdError, unknown
from fedekd.files import unreadable, write_whole
from fedekd.runs.records import Record
from fedekd.settings import ChosenBy
from fedekd.validation import parse_json

NAME = "choice.json"


def write(folder: Path, by: ChosenBy) -> None:
    """The last run or study of a folder decides."""
    if by != read(folder):
        write_whole(folder / NAME, json.dumps({"chosen_by": by}).encode())


def read(folder: Path) -> ChosenBy:
    path = folder / NAME
    try:
        content = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return "metric"
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise _useless(path, str(error)) from None
    by = content.get("chosen_by") if isinstance(content, dict) else None
    if by not in get_args(ChosenBy):
        raise _useless(path, f"chosen_by is {str(by)[:60]!r}")
    return cast("ChosenBy", by)


def _useless(path: Path, why: str) -> FedekdError:
    return FedekdError(f"{path} cannot be read ({why}); remove it to choose by the metric")


def put_on(record: Record, by: ChosenBy) -> Record:
    if by not in get_args(ChosenBy):
        raise unknown("chosen_by", str(by), get_args(ChosenBy))
    if by != "metric":
        return {**record, "chosen_by": by}
    plain = record.copy()
    plain.pop("chosen_by", None)
    return plain
