"""Flower's SuperExec, whose ServerApp ends with it: by itself it may hang in its exit for ever, and hold the state.

python -m fedekd.flower.supervise.superexec ARGUMENTS OF flower-superexec
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from types import SimpleNamespace
from typing import Any

from fedekd.flower.supervise.processes import end_with


def main() -> None:
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    patched: Any = subprocess_executor
    start = partial(subprocess.Popen, preexec_fn=partial(end_with, os.getpid()))
    patched.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    flower_superexec()


if __name__ == "__main__":
    main()
