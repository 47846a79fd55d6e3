"""What a person may want to know later, in a file beside the state."""

from __future__ import annotations

import logging
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
