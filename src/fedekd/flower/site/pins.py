"""What a site has agreed to, and how often it has refused.

A site answers whether its rows fit a schema, so that a server that may ask with any schema reads the rows bit by bit.
Hence there is one schema and one set of terms: the first that is offered, or the one that the administrator accepts.
Another offer is refused before the rows are looked at, and kept for the administrator to see. Refusals are counted,
and after some of them nothing is looked at for a day.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.protocol.offers import Offer, differences
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.saved_state import locked, write_text
from fedekd.flower.settings import OFFERED
from fedekd.flower.site.audit import record

log = logging.getLogger("fedekd.site")
AGREED, REFUSALS = "agreed.json", "refusals.json"  # in the site's state
MOST, DAY = 10, 86_400.0  # refused joins in so many seconds, after which no other is looked at


class Pins:
    def __init__(self, state: Path) -> None:
        self.state = state

    # --- at a join ------------------------------------------------------------------------------------------

    def closed(self) -> bool:
        """Whether so many joins were refused of late that no other is looked at."""
        with locked(self.state):
            kept = self._refusals()
            times, told = kept["times"], kept["told"]
            closed = len(times) == MOST and time.time() - times[0] <= DAY
            if closed and not told:
                write_text(self.state / REFUSALS, json.dumps({"times": times, "told": True}))
                log.error(
                    "%d joins were refused within a day, so no more are considered until it is over; "
                    "`fedekd site accept SITE.toml` ends this",
                    MOST,
                )
        return closed

    def refused(self) -> int:
        """Count one; returns how many there were within a day."""
        with locked(self.state):
            kept = self._refusals()
            recent = [one for one in kept["times"] if time.time() - one <= DAY]
            times = [*recent, time.time()][-MOST:]
            write_text(self.state / REFUSALS, json.dumps({"times": times, "told": False}))
            return len(times)

    def check(self, offer: Offer) -> bool:
        """Raise for another offer than the one agreed to; the first is taken. True: the administrator has accepted the
        schema."""
        with locked(self.state):
            agreed = self._agreed()
            if agreed is None or (agreed["terms"] is None and agreed["schema"] == offer.schema):
                accepted = agreed is not None
                write_text(self.state / AGREED, json.dumps({**asdict(offer), "accepted": accepted}))
                log.info(
                    "agreed to the first %s offered: %s", "terms" if accepted else "schema and terms", offer.fingerprint
                )
                return accepted
            if all(agreed[name] == value for name, value in json.loads(json.dumps(asdict(offer))).items()):
                return bool(agreed["accepted"])
            write_text(self.state / OFFERED, json.dumps(asdict(offer)))
        unlike = "; ".join(self._unlike(agreed, offer))
        raise FedekdError(
            f"the server's offer differs from what this site agreed to ({unlike}); "
            "`fedekd site accept SITE.toml` shows it, and accepts it if you agree"
        )

    # --- at the administrator's word ------------------------------------------------------------------------

    def accept_schema(self, schema: Schema) -> None:
        """This one from now on, with the first terms that come with it."""
        self._accept({"terms": None, "schema": schema.text(), "leaves": None, "accepted": True})

    def accept(self, fingerprint: str) -> Offer:
        """The last offer that was refused, if it is still the one that the administrator has seen."""
        offer = self.offered()
        if offer is None:
            raise FedekdError("there is no offer to accept")
        if offer.fingerprint != fingerprint:
            raise FedekdError(f"the last offer is {offer.fingerprint}, not {fingerprint!r}; look at it first")
        self._accept({**asdict(offer), "accepted": True})
        return offer

    def _accept(self, agreed: dict[str, Any]) -> None:
        with locked(self.state):
            write_text(self.state / AGREED, json.dumps(agreed))
            (self.state / OFFERED).unlink(missing_ok=True)
            (self.state / REFUSALS).unlink(missing_ok=True)
        record(self.state, "accept", **{name: agreed[name] for name in ("terms", "schema", "leaves")})

    def look_again(self) -> int:
        """Forget the refusals; returns how many there were."""
        count = len(self._refusals()["times"])
        (self.state / REFUSALS).unlink(missing_ok=True)
        return count

    def refusals(self) -> int:
        """How many joins were refused within a day, at most ``MOST``."""
        return sum(time.time() - one <= DAY for one in self._refusals()["times"])

    def offered(self) -> Offer | None:
        """The last offer that was refused because another one is agreed to."""
        found = self._read(OFFERED)
        return Offer(found["terms"], found["schema"], tuple(found["leaves"])) if found else None

    def changes(self) -> list[str]:
        """What the offer has otherwise than what is agreed to."""
        agreed, offer = self._agreed(), self.offered()
        return self._unlike(agreed, offer) if agreed and offer else []

    # --- files ----------------------------------------------------------------------------------------------

    def _unlike(self, agreed: dict[str, Any], offer: Offer) -> list[str]:
        terms = agreed["terms"] or offer.terms
        found = differences(json.dumps([terms, agreed["schema"]]), json.dumps([offer.terms, offer.schema]))
        return found or [f"what leaves was {agreed['leaves']}, is {list(offer.leaves)}"]

    def _agreed(self) -> dict[str, Any] | None:
        return self._read(AGREED)

    def _refusals(self) -> dict[str, Any]:
        return self._read(REFUSALS) or {"times": [], "told": False}

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.state / name
        try:
            return dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise FedekdError(f"cannot read {path}: {error}; bring it back, or accept a schema anew") from None
