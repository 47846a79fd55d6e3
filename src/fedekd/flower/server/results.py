"""What the server puts its name to at the end: the final models and the report, by their hashes."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.flower.protocol.digests import digest
from fedekd.flower.protocol.offers import Offer
from fedekd.flower.saved_state import write_text
from fedekd.flower.setup.signing import sign
from fedekd.runs.federation_report import SIGNED

if TYPE_CHECKING:
    from fedekd.flower.server.rounds import Rounds

log = logging.getLogger("fedekd.server")


def signed_result(rounds: Rounds) -> dict[str, str]:
    """As words for the sites, and in the server's state; nothing where it cannot be signed, which is told."""
    server = rounds.server
    models = {
        name: {"tensors": sorted(answer), "sha256": digest({k: tensor.cpu().numpy() for k, tensor in answer.items()})}
        for name, answer in rounds.answers.items()
    }
    try:
        signed = sign(
            server,
            {
                "fedekd": __version__,
                "federation": rounds.progress.federation,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "method": rounds.terms.method,
                "rounds": rounds.terms.rounds,
                "offer": Offer.of(rounds.terms, rounds.schema).fingerprint,
                "models": models,
                "report": hashlib.sha256((server.state / "report.json").read_bytes()).hexdigest(),
            },
        )
        write_text(server.state / SIGNED, json.dumps(signed.words(), indent=1) + "\n")
    except FedekdError as error:
        log.warning("the results are not signed: %s", error)
        return {}
    return signed.words()
