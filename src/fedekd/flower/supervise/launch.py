"""Flower's own programs with fedekd's replacements in them.

python -m fedekd.flower.supervise.launch superlink|superexec|supernode ARGUMENTS OF flower-...
"""

from __future__ import annotations

import os
import sys

from fedekd.flower import patches

LAUNCH = "fedekd.flower.supervise.launch"  # this module, for ``python -m``
LARGEST = "FEDEKD_LARGEST"  # environment variable: bytes that one message of a site may have
DEFAULT = 1_000_000_000


def superlink() -> None:
    from flwr.superlink.cli.flower_superlink import flower_superlink

    patches.patch_superlink(int(os.environ.get(LARGEST, DEFAULT)))
    flower_superlink()


def superexec() -> None:
    from flwr.supercore.cli import flower_superexec

    patches.patch_superexec()
    flower_superexec()


def supernode() -> None:
    from flwr.supernode.cli import flower_supernode

    patches.patch_supernode()
    flower_supernode()
    os._exit(1)  # the connection is lost, and Flower's thread for its local HTTP server would never end


if __name__ == "__main__":
    {"superlink": superlink, "superexec": superexec, "supernode": supernode}[sys.argv.pop(1)]()
