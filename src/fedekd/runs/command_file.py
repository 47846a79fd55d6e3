"""The command that made a folder's results and the machine it ran on, in DIR/command.json, for the page to tell."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedekd.files import write_whole
from fedekd.validation import parse_json

NAME = "command.json"


def write(folder: str | Path, words: Sequence[str], device: str) -> None:
    content = {"command": shlex.join(["fedekd", *words]), "hardware": hardware(device)}
    write_whole(Path(folder) / NAME, json.dumps(content, indent=1).encode())


def read(folder: str | Path) -> dict[str, str]:
    """Empty if it is missing or damaged: it is only shown, and nothing depends on it."""
    try:
        content = parse_json((Path(folder) / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: content[name] for name in ("command", "hardware") if isinstance(content.get(name), str)}


def hardware(device: str) -> str:
    processor = f"{os.cpu_count()} cores of {_processor()}, {platform.system()}"
    if device == "cpu":
        return processor
    import torch

    return f"{torch.cuda.get_device_name()}; {processor}" if torch.cuda.is_available() else processor


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
