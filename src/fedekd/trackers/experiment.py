"""What the runs of one command have in common in a tracker, and names that every tracker accepts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedekd.settings import Settings, model_name

ELSEWHERE = ("methods", "seeds", "parameters", "out", "data", "engine", "models", "chosen_by")
"""What a run's label tells, or what has no effect on training."""


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in method and seed alone, and can therefore be compared."""

    name: str
    """Other settings have another name, so that their runs never mix in one folder."""
    params: dict[str, Any]

    @classmethod
    def of(cls, settings: Settings) -> Experiment:
        names = [field.name for field in fields(settings) if field.name not in ELSEWHERE]
        params = {name: _plain(value) for name in names if (value := getattr(settings, name)) is not None}
        digest = hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()[:6]
        alpha = "" if settings.clients_from else f"-alpha{settings.alpha:g}"
        return cls(f"{tag(Path(settings.dataset).stem)}{alpha}-{digest}", params)


def _plain(value: Any) -> Any:
    return model_name(value) if callable(value) else value


def tag(text: str) -> str:
    """A name that no tracker objects to: letters, digits, and _ . = -"""
    return re.sub(r"^\.+", "_", re.sub(r"[^\w.=-]+", "_", text))[:100] or "_"


def tags(names: Iterable[str]) -> dict[str, str]:
    """A tag for each name, no two alike."""
    found: dict[str, str] = {}
    for name in names:
        wish = plain = tag(name)
        number = 2
        while plain in found.values():
            plain, number = f"{wish}_{number}", number + 1
        found[name] = plain
    return found
