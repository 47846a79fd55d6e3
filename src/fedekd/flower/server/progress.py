"""What the server has to know to go on where it was: its sites, how far they are, and what they told of themselves."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedekd.flower.settings import usable_name


@dataclass
class Roster:
    """Which sites belong to the federation: each has a number in the random streams and keeps it.

    A name is that of a key; the first node to use one keeps it for as long as its key is let in. Another key is
    another node.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)

    def admit(self, names: Mapping[int, str], admitted: Container[int]) -> dict[int, str]:
        """Enter the names of nodes that agreed to the terms, new ones in the names' order; tells whom it turns away.

        ``admitted``: all nodes whose keys are let in. A name whose node is none of them goes to the next that uses it.
        """
        refused = {}
        for node, name in sorted(names.items(), key=lambda item: (item[1], item[0])):
            reason = self._reason(node, name, admitted)
            if reason:
                refused[node] = reason
            else:
                self.nodes[name] = node
                self.numbers.setdefault(name, len(self.numbers))
        return refused

    def _reason(self, node: int, name: str, admitted: Container[int]) -> str | None:
        if not usable_name(name):
            return f"node {node} gives no usable name"
        if (owner := self.nodes.get(name, node)) != node and owner in admitted:
            return f"the name {name!r} belongs to another key; take that one out of `nodes`, then restart the site"
        other = self.name(node)
        return f"node {node} is known as {other!r}, not as {name!r}" if other not in (None, name) else None

    def forget(self, name: str) -> None:
        """Have a site join again; its number stays its own."""
        self.nodes.pop(name, None)

    def name(self, node: int) -> str | None:
        return next((name for name, own in self.nodes.items() if own == node), None)

    def state(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "nodes": self.nodes}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Roster:
        return cls(dict(state["numbers"]), dict(state["nodes"]))


@dataclass
class FederationProgress:
    """Saved after every complete visit."""

    federation: str
    agreed: str
    """Terms and schema as the federation began with."""
    done: int = -1
    """The last complete visit."""
    roster: Roster = field(default_factory=Roster)
    current: list[str] = field(default_factory=list)
    """The sites that answered when they were last asked."""
    answered: list[str] = field(default_factory=list)
    """Those that answered the last complete visit."""
    has: dict[str, list[str]] = field(default_factory=dict)
    """By exchange that was answered: the sites that have the newest answer."""
    drawn: dict[int, list[int]] = field(default_factory=dict)
    """By round: the numbers of the sites that take part, where not all do."""
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
    def restored(cls, state: Mapping[str, Any]) -> FederationProgress:
        return cls(**{**state, "roster": Roster.restored(state["roster"])})

    def forget(self, names: Collection[str]) -> None:
        """Sites that have lost all that they were sent."""
        for kept in (self.current, self.answered, *self.has.values()):
            kept[:] = [name for name in kept if name not in names]

    def sites(self) -> list[dict[str, Any]]:
        told = self.numbers
        return [{"name": name, "answered": name in told, **told.get(name, {})} for name in self.roster.numbers]
