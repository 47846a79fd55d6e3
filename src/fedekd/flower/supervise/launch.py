"""Flower's own programs with fedekd's replacements in them.

python -m fedekd.flower.supervise.launch superlink|superexec|supernode ARGUMENTS OF flower-...
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from pathlib import Path

from fedekd.flower import patches
from fedekd.flower.setup.keys import read_public_keys

LAUNCH = "fedekd.flower.supervise.launch"  # this module, for ``python -m``
LARGEST = "FEDEKD_LARGEST"  # environment variable: bytes that one message of a site may have
NODES = "FEDEKD_NODES"  # environment variable: the folder of the sites' keys
TOLD = "fedekd: "  # begins a line of a log that a person should read
DEFAULT = 1_000_000_000


def superlink() -> None:
    from flwr.superlink.cli.flower_superlink import flower_superlink

    patches.patch_superlink(int(os.environ.get(LARGEST, DEFAULT)), two_machines)
    flower_superlink()


def two_machines(key: bytes, one: str, other: str) -> None:
    """``key`` as Flower's header has it."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys, _ = read_public_keys(Path(os.environ.get(NODES, "")))
    names = [path.name for path, public in keys.items() if b64encode(public_key_to_bytes(public)) == key]
    whose = names[0] if names else "an unknown key"
    print(
        f"{TOLD}two machines use {whose}, {one} and {other}: the second is not let in while the first is there; each "
        "needs a key of its own (`fedekd site key`)",
        flush=True,
    )


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
