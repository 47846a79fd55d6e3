"""Who may join: a SuperLink's list of keys follows the folder ``nodes``, also while a federation runs.

Flower never takes a key again that it once let go. So nobody is let go because of a file that cannot be read, which may
be half copied; and a key that comes back is named, not registered. What is wrong with one key concerns no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedekd.flower.server.control import Control, Refused
from fedekd.flower.setup.keys import read_public_keys


@dataclass
class Admission:
    problems: dict[Path, str]
    """By file (or the folder): why what is in it changes nothing."""
    came: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    again: bool = False
    """Whether the SuperLink refused something, for a reason that may pass."""

    def do(self, call: Callable[..., None], *given: Any, file: Path, done: list[str]) -> None:
        try:
            call(*given)
            done.append(file.stem)
        except Refused as refused:
            self.problems[file], self.again = f"{file} has no effect yet: {refused}", True


def admit(superlink: Control, folder: Path) -> Admission:
    """Make the SuperLink's list of sites that of the folder's NAME.pub files, as far as that goes."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys, unread = read_public_keys(folder)
    files = {public_key_to_bytes(key): path for path, key in keys.items()}
    nodes = superlink.nodes()
    let_in = {node.public_key: node for node in nodes if not node.unregistered_at}
    void = {node.public_key for node in nodes if node.unregistered_at}
    found = Admission({path: f"{why}; until that is mended its site stays as it was" for path, why in unread.items()})
    for key, node in let_in.items():
        file = folder / f"{node.name}.pub"
        if key not in files and file not in unread and folder not in unread:
            found.do(superlink.unregister, node.node_id, file=file, done=found.gone)
    for key, file in files.items():
        if key in void:
            found.problems[file] = (
                f"site {file.stem} needs a new key: the one in {file} was taken out before, which makes it void; "
                "`fedekd site key` at the site makes one"
            )
        elif key not in let_in:
            found.do(superlink.register, key, file.stem, file=file, done=found.came)
    return found
