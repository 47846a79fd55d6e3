"""Which sites belong to the federation: each has a number in the random streams and keeps it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedekd.flower.settings import usable_name


@dataclass
class Roster:
    """Names are the sites' own words; the first node to use one keeps it for as long as its key is let in.

    Another key is another node.
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
