"""What a person may want to know later, in a file beside the state."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path


def log_to(path: Path) -> None:
    """Send fedekd's lines to a file from now on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("fedekd")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Tail:
    """Says the whole lines that are added to a file."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self.position = path.stat().st_size if path.exists() else 0

    def look(self) -> None:
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            if self.position > os.fstat(file.fileno()).st_size:  # it was put aside, and begun anew
                self.position = 0
            file.seek(self.position)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.say(re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line))  # the time is said anyway
