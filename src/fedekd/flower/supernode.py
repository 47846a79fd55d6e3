"""Flower's SuperNode, asking for messages every second; Flower's own asks every three, which is most of a short round.

python -m fedekd.flower.supernode ARGUMENTS OF flower-supernode
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

PAUSE = 1.0  # seconds


def main() -> None:
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    patched: Any = start_client_internal
    patched.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))
    flower_supernode()


if __name__ == "__main__":
    main()
