"""What a site makes of the server's signature at the end: whether it is good, and is about what this site has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.protocol.digests import digest
from fedekd.flower.saved_state import SavedState
from fedekd.flower.settings import SiteSettings
from fedekd.flower.setup.signing import SignedStatement, verify


def verified(site: SiteSettings, folder: Path, signed: SignedStatement, now: datetime | None = None) -> dict[str, Any]:
    """What the server states of this federation; raises ``FedekdError`` unless it has signed it."""
    statement = verify(signed, site.ca, site.server, now)
    if statement.get("federation") != folder.name:
        raise FedekdError(f"it is about federation {str(statement.get('federation'))[:60]!r}, not {folder.name}")
    agreed = json.loads((folder / "agreement.json").read_text()).get("offer")
    if agreed and statement.get("offer") != agreed:
        raise FedekdError(
            f"it is about the terms {str(statement.get('offer'))[:60]!r}, and this site agreed to {agreed}"
        )
    return statement


def compared(folder: Path, statement: Mapping[str, Any]) -> list[str]:
    """Line by line: whether the models that the server signed are those that the site holds."""
    kept = SavedState(folder).load()
    held = kept[1]["held"] if kept else {}
    lines = []
    for name, model in statement["models"].items():
        told = f"the final {name}, sha256 {model['sha256']},"
        if name not in held:
            lines.append(f"{told} is not among those that this site holds")
            continue
        own = {key: held[name][key].numpy() for key in model["tensors"] if key in held[name]}
        same = digest(own) == model["sha256"]
        lines.append(f"{told} {'is the one that this site holds' if same else 'is not the one that this site holds'}")
    return lines
