"""What the server sets for everyone: the method and how it is trained. Sites keep it as agreed when they join."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from fedekd import __version__, methods, models
from fedekd.architectures import NAMED
from fedekd.engines.job import Training
from fedekd.errors import FedekdError
from fedekd.flower.secure_settings import AGGREGATIONS, check_secure
from fedekd.flower.settings import COMPRESSIONS, ServerSettings
from fedekd.methods.base import Method
from fedekd.settings import CHOICES, MOST, NEWER
from fedekd.validation import parse_json

MASKING = {"aggregation": "plain", "mask_limit": 16.0, "mask_threshold": 0.5}  # that versions without it had
LONGEST, LETTERS = 100_000, 300  # letters of the terms, and of a name in them


class UnknownTerms(FedekdError):
    """Terms of a newer version than this one."""


@dataclass(frozen=True)
class Terms:
    method: str
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    optimizer: str
    weighting: str
    seed: int
    compression: str = "none"
    proxy: str | None = None
    private: str | None = None
    participation: float = 1.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"
    augment: str = "none"
    combine: str = "mean"
    aggregation: str = "plain"
    mask_limit: float = 16.0
    mask_threshold: float = 0.5
    public: str | None = None
    """Fingerprint of the rows that everybody holds."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, server: ServerSettings, public: str | None = None) -> Terms:
        return cls(**{**{f.name: getattr(server, f.name) for f in fields(cls)}, "public": public})

    @classmethod
    def usual(cls) -> Terms:
        """Of a server whose file leaves them out."""
        named = {f.name for f in fields(cls)}
        defaults = {f.name: f.default for f in fields(ServerSettings) if f.name in named and f.default is not MISSING}
        return cls(**defaults)

    def text(self) -> str:
        """Without what older versions do not know, where it is as they have it: their federations go on."""
        newer = {name: value for name, value in {**NEWER, **MASKING}.items() if name != "participation"}
        told = {name: value for name, value in asdict(self).items() if (name, value) not in newer.items()}
        return json.dumps(told, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Terms:
        """The terms as another machine sends them."""
        try:
            if len(text) > LONGEST:
                raise ValueError(f"{len(text)} letters")
            given = dict(parse_json(text.encode()))
            if unknown := sorted(name[:LETTERS] for name in given if name not in {f.name for f in fields(cls)}):
                raise UnknownTerms(
                    f"the server's terms have {', '.join(unknown)[:LETTERS]}, which fedekd {__version__} at this site "
                    "does not know: update it to the server's version"
                )
            terms = cls(**given)
            for name in ("rounds", "epochs", "batch_size"):
                value = getattr(terms, name)
                if type(value) is not int or not 1 <= value <= MOST:
                    raise ValueError(f"{name} is {value!r:.40}")
            if type(terms.seed) is not int or not 0 <= terms.seed < 2**63 or not isinstance(terms.parameters, dict):
                raise ValueError("seed or parameters")
            bounds = {"lr": (1e-300, 1e300), "participation": (1e-9, 1), "weight_decay": (0, 1e300)}
            bounds |= {"mask_limit": (1e-6, 1e6), "mask_threshold": (0.5, 1)}
            for name, (low, high) in bounds.items():
                value = getattr(terms, name)
                if type(value) not in (int, float) or not low <= value <= high:
                    raise ValueError(f"{name} is {value!r:.40}")
            choices = {**CHOICES, "compression": COMPRESSIONS, "aggregation": AGGREGATIONS}
            for name in ("optimizer", "weighting", "lr_schedule", "augment", "combine", "compression", "aggregation"):
                if getattr(terms, name) not in choices[name]:
                    raise ValueError(f"{name} is {getattr(terms, name)!r:.40}")
            texts = [terms.method, *(name for name in (terms.proxy, terms.private, terms.public) if name is not None)]
            if not all(isinstance(text, str) and len(text) <= LETTERS for text in texts):
                raise ValueError("a name is no text, or too long a one")
            if terms.aggregation == "secure":
                check_secure(terms, "the server's terms: ")
        except (ValueError, TypeError) as error:
            raise FedekdError(
                f"the server's terms cannot be read ({error}); is its fedekd of another version?"
            ) from None
        return terms

    def make_method(self) -> Method:
        return methods.get(self.method, **self.parameters)

    def training(self, device: str = "cpu") -> Training:
        agreed = {f.name for f in fields(Terms)}
        shared = {f.name: getattr(self, f.name) for f in fields(Training) if f.name in agreed}
        return Training(**shared, device=device)

    def factory(self, role: str) -> models.Factory:
        """As in a simulation, a role of a method's own naming is built like a proxy."""
        return models.factory("private", self.private) if role == "private" else models.factory("proxy", self.proxy)

    def foreign(self) -> list[str]:
        """What a site would have to import by a name that the server chose."""
        method = [self.method] if ":" in self.method else []
        return [*method, *(name for name in (self.proxy, self.private) if name is not None and name not in NAMED)]
