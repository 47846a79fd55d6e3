"""One file from the web to disk: it goes on where it stopped, and gets its name only once its checksum is right."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    import requests
    from rich.progress import Progress

TIMEOUT_S = 30
BLOCK = 1 << 18


def to_file(url: str, path: Path, md5: str | None, name: str, progress: bool) -> None:
    """Download ``url`` to ``path`` unless a file with that checksum is there already."""
    import pooch

    log = pooch.get_logger()
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        pooch.retrieve(
            url,
            known_hash=f"md5:{md5}" if md5 else None,
            fname=path.name,
            path=path.parent,
            downloader=Resuming(path, name, progress),
        )
    except ValueError:
        raise FedekdError(
            f"{path.name} arrived with the wrong checksum (expected md5 {md5}) and was deleted; "
            f"run `fedekd data fetch {name}` again, or put the right file at {path}"
        ) from None
    finally:
        log.setLevel(level)


class Resuming:
    """A downloader for pooch: appends to PATH.part, and asks only for what that file lacks."""

    def __init__(self, path: Path, name: str, progress: bool) -> None:
        self.path, self.name, self.progress = path, name, progress
        self.part = path.with_name(f"{path.name}.part")

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests
        import urllib3

        Path(output_file).unlink(missing_ok=True)  # pooch's empty file: a kill would leave it lying about
        farthest = self._size()
        while True:
            try:
                self._stream(url)
                break
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                # A connection that breaks is taken up again for as long as each one brings us farther.
                if self._size() <= farthest:
                    raise self._stopped(url, error) from None
                farthest = self._size()
        os.replace(self.part, output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _stream(self, url: str) -> None:
        import requests

        have = self._size()
        # "identity", and no decoding below: the file is wanted byte for byte as it was published.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, stream=True, headers=headers, timeout=TIMEOUT_S) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                if answer.headers.get("Content-Range", "") == f"bytes */{have}":
                    return
                self.part.unlink()
                return self._stream(url)
            answer.raise_for_status()
            if answer.status_code != requests.codes.partial_content:
                have = 0
            length = int(answer.headers.get("Content-Length", 0))
            free = shutil.disk_usage(self.part.parent).free
            if length > free:
                raise OSError(errno.ENOSPC, f"{_mb(length)} are needed and {_mb(free)} are free")
            with self.part.open("ab" if have else "wb") as file, self._bar() as bar:
                task = bar.add_task(self.path.name, total=have + length if length else None, completed=have)
                for block in answer.raw.stream(BLOCK, decode_content=False):
                    file.write(block)
                    bar.advance(task, len(block))

    def _bar(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        return Progress(*columns, console=Console(stderr=True), disable=not self.progress)

    def _stopped(self, url: str, error: Exception) -> FedekdError:
        import requests

        if isinstance(error, requests.HTTPError) and error.response is not None:
            why = f"{url} answered {error.response.status_code} {error.response.reason}"
        else:
            why = f"the connection to {url} failed ({_reason(error)})"
        have = self._size()
        again = f"run `fedekd data fetch {self.name}` again" + (f" to go on from {_mb(have)}" if have else "")
        return FedekdError(f"cannot fetch {self.path.name}: {why}; {again}, or put the file at {self.path} yourself")


def _reason(error: Exception) -> str:
    import requests

    kinds: tuple[tuple[type[requests.RequestException], str], ...] = (
        (requests.Timeout, f"no answer in {TIMEOUT_S} s"),
        (requests.exceptions.SSLError, "its certificate was not accepted"),
        (requests.ConnectionError, "no network, or the host does not answer"),
    )
    return next((text for kind, text in kinds if isinstance(error, kind)), "it broke off")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
