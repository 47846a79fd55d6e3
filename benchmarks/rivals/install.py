"""An environment of its own for each rival, so that none of them enters the product's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


class NotInstalled(Exception):
    """The rival could not be installed; says why."""


def ensure(name: str, home: Path) -> Path:
    """The rival's Python, with its pinned requirements installed under ``home``."""
    wanted = (HERE / name / "requirements.txt").read_text()
    folder = home / f"bench-{name}"
    python, stamp = folder / "bin" / "python", folder / ".requirements"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    if not python.exists():
        _call(sys.executable, "-m", "venv", str(folder))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _call(*pip, "--requirement", str(HERE / name / "requirements.txt"))
    stamp.write_text(wanted)
    return python


def _call(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:4])} ...: {' / '.join(done.stdout.strip().splitlines()[-3:])}")
