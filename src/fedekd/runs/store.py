"""A results folder: finished runs as lines of ``results.jsonl``, unfinished ones as checkpoints.

A line is there whole or not at all, and two processes may write to one folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from fedekd.errors import FedekdError
from fedekd.files import unreadable, writing
from fedekd.runs import choice_file
from fedekd.runs.records import FailureRow, Record, read_failure, read_record
from fedekd.settings import ChosenBy
from fedekd.validation import parse_json

T = TypeVar("T")
KEY = re.compile(rb'"key": ?"([^"\\]*)"')


class _Noting:
    """A file for torch, which may say something else of what the system refused."""

    def __init__(self, file: IO[bytes], refused: list[OSError]) -> None:
        self.file, self.refused = file, refused

    def write(self, content: bytes) -> int:
        return self._try(lambda: self.file.write(content))

    def flush(self) -> None:
        self._try(self.file.flush)

    def _try(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            self.refused.append(error)
            raise


class Store:
    """Lines of ``results.jsonl`` are records, of which there is one for each key; another ``file`` is a log."""

    def __init__(self, folder: str | Path, file: str = "results.jsonl") -> None:
        self.folder = Path(folder)
        self.results = self.folder / file
        self._once = file == "results.jsonl"
        self._keys, self._looked_to = set[bytes](), 0
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ".lock").touch()

    def records(self) -> list[Record]:
        return read_records(self.results)

    def among(self, keys: Collection[str]) -> dict[str, Record]:
        """Those records that have one of these keys, by key."""
        return {record["key"]: record for record in self.records() if record["key"] in keys}

    def add(self, record: Mapping[str, Any], again: bool = False) -> None:
        """Append one line, unless there is one of that run already, and even then if it is to be there ``again``.

        A line that an earlier crash cut short is removed first.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with writing(self.results), self._locked(), open(self.results, "ab+", buffering=0) as file:
            end = _end_of_last_line(file.fileno())
            os.ftruncate(file.fileno(), end)
            if (
                self._once
                and not again
                and "key" in record
                and self._has(file.fileno(), end, str(record["key"]).encode())
            ):
                return
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise

    def _has(self, fd: int, end: int, key: bytes) -> bool:
        """Whether a line before ``end`` is that of this run; only what is new since the last look is read."""
        if end < self._looked_to:
            self._keys, self._looked_to = set(), 0
        while self._looked_to < end:
            chunk = os.pread(fd, min(end - self._looked_to, 1 << 24), self._looked_to)
            whole = chunk.rfind(b"\n") + 1 or len(chunk)
            self._keys.update(KEY.findall(chunk[:whole]))
            self._looked_to += whole
        return key in self._keys

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- checkpoints -------------------------------------------------------------------------------------

    def checkpoint(self, key: str) -> Path:
        return self.folder / "checkpoints" / f"{key}.pt"

    def save(self, key: str, state: Any) -> None:
        import torch

        path = self.checkpoint(key)
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.part")
            refused: list[OSError] = []
            try:
                with partial.open("wb") as file:
                    torch.save(state, cast("IO[bytes]", _Noting(file, refused)))
                with contextlib.suppress(FileNotFoundError):  # another process has finished the run, and swept
                    os.replace(partial, path)
            except RuntimeError:
                if refused:
                    raise refused[0] from None
                raise
            finally:
                partial.unlink(missing_ok=True)

    def restore(self, key: str) -> Any | None:
        """The run's last checkpoint; a damaged one counts as none, one that may not be read does not."""
        import torch

        path = self.checkpoint(key)
        try:
            with path.open("rb") as file:
                file.read(1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            return torch.load(path, weights_only=True, map_location="cpu")
        except Exception:
            return None

    def discard(self, key: str) -> None:
        """Forget a run's checkpoint, and what a killed process left of writing one."""
        path = self.checkpoint(key)
        for file in (path, *path.parent.glob(f"{key}.*.part")):
            file.unlink(missing_ok=True)


def read_records(path: Path, chosen_by: ChosenBy | None = None) -> list[Record]:
    """``chosen_by``: what chooses the best alone of them, if not what their folder says."""
    by = chosen_by or choice_file.read(path.parent)
    return [choice_file.put_on(read_record(line, where), by) for where, line in read_lines(path)]


def read_failures(folder: Path) -> list[FailureRow]:
    return [read_failure(line, where) for where, line in read_lines(folder / "failures.jsonl")]


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """All whole lines and where they stand, those packed away in PATH.gz first; one that was cut off does not count."""
    for file, read in ((path.with_name(f"{path.name}.gz"), gzip.open), (path, open)):
        try:
            with read(file, "rb") as stream:
                data = stream.read()
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            raise FedekdError(f"{path.parent} is not a folder; give the one that a run or a study wrote") from None
        except (OSError, EOFError, zlib.error) as error:
            raise FedekdError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            if not line.strip():
                continue
            where = f"line {number} of {file}"
            try:
                yield where, parse_json(line)
            except ValueError as error:
                remedy = "give the folder that a run or a study wrote, or remove the line"
                raise FedekdError(f"{where} is not JSON ({error}); {remedy}") from None


def _end_of_last_line(fd: int) -> int:
    size = os.fstat(fd).st_size
    block = 1 << 16
    while size > 0:
        start = max(0, size - block)
        chunk = os.pread(fd, size - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0
