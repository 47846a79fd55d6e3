"""What the server has to know to go on where it was, and the report made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedekd.flower.roster import Roster
from fedekd.flower.wire import Letter

KINDS: dict[str, type | tuple[type, ...]] = {
    "n": int, "metric": str, "local": (int, float), "value": (int, float), "delta": (int, float), "privacy": str,
}  # fmt: skip


@dataclass
class Progress:
    """Saved after every complete visit."""

    federation: str
    agreed: str
    """Terms and schema as the federation began with."""
    done: int = -1
    """The last complete visit."""
    roster: Roster = field(default_factory=Roster)
    current: list[str] = field(default_factory=list)
    """The sites that answered it."""
    counted: list[list[str]] = field(default_factory=list)
    """For each visit, the sites whose answer counted."""
    refused: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        return {**vars(self), "roster": self.roster.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Progress:
        return cls(**{**state, "roster": Roster.restored(state["roster"])})

    def sites(self) -> list[dict[str, Any]]:
        return [{"name": name, **self.numbers.get(name, {})} for name in self.roster.numbers]


def numbers_in(reply: Letter) -> dict[str, Any]:
    """What a site shares, and nothing else that it may have sent."""
    found = {name: value for name, kind in KINDS.items() if isinstance(value := reply.words.get(name), kind)}
    if "privacy" in found:
        try:
            found["privacy"] = json.loads(str(found["privacy"]))
        except ValueError:
            del found["privacy"]
    return found
