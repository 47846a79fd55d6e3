"""What a server offers a site to join for: its terms, its schema and what would leave, with a fingerprint of it all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedekd.exchange import exchanges
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms


@dataclass(frozen=True)
class Offer:
    terms: str
    schema: str
    leaves: tuple[str, ...]
    """What the method sends, by the names of its exchanges."""

    @classmethod
    def of(cls, terms: Terms, schema: Schema) -> Offer:
        return cls(terms.text(), schema.text(), tuple(sorted(exchanges(terms.make_method(), terms.rounds))))

    @property
    def fingerprint(self) -> str:
        """Too long for a server to find two offers that have the same."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    def lines(self) -> list[str]:
        """For a person to read before agreeing."""
        schema, terms = Schema.parse(self.schema), json.loads(self.terms)
        columns = f"columns {', '.join(schema.columns)}" if schema.columns else f"rows of shape {schema.shape}"
        return [
            f"terms: {', '.join(f'{name} {value}' for name, value in terms.items() if value not in (None, {}))}",
            f"what leaves: {', '.join(self.leaves) or 'nothing'}",
            f"schema: {schema.task}, {columns}" + (f", labels {', '.join(schema.labels)}" if schema.labels else ""),
        ]


def differences(before: str, now: str) -> list[str]:
    """What two pairs of terms and schema differ in, each a JSON list; a schema's parts are long, and are only named."""
    (old, new), (old_schema, new_schema) = (
        map(json.loads, pair) for pair in zip(json.loads(before), json.loads(now), strict=True)
    )
    terms = [f"{name} was {old.get(name)!r}, is {new.get(name)!r}" for name in _unlike(old, new)]
    return terms + [f"the schema has other {name}" for name in _unlike(old_schema, new_schema)]


def _unlike(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]
