"""What the file of a site's model says of it: all that is needed to use it, in the file's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.dataset import TASKS, Reading
from fedekd.errors import FedekdError

KNOWLEDGE = ("memory", "received", "gradients")  # of a client, besides its models
MOST = 100_000  # outputs, or values along one side of a row: more is a forged size, and takes for ever
MOST_VALUES = 2**27  # in a row
NEEDED = ("client", "method", "model", "shape", "outputs", "task", "gain", "shift", "target_mean", "target_std")


@dataclass(frozen=True)
class OwnCode:
    """Where the user says that code of their own is; what a file names is never imported on its word alone."""

    private: str | None = None
    proxy: str | None = None
    method: str | None = None


@dataclass(frozen=True)
class Answers:
    """What a file says of a method that answers with more than the private model."""

    method: str
    code: str
    """Its class, module:Class; never imported on the file's word."""
    parameters: Mapping[str, Any]
    roles: tuple[str, ...]
    knows: tuple[str, ...]
    """Names of the tensors besides models."""
    proxy: str | None
    """The factory of models that are not like the private one, if there are any."""
    counts: tuple[int, ...]
    lr: float
    steps: int
    keeps_rows: bool

    @classmethod
    def of(cls, about: Any) -> Answers:
        if not isinstance(about, dict):
            raise TypeError(f"answers: {about!r}")
        lacking = [f.name for f in fields(cls) if f.name not in about]
        if lacking:
            raise ValueError(f"its answers do not say their {lacking[0]}")
        for name, kind in (("parameters", dict), ("keeps_rows", bool)):
            if not isinstance(about[name], kind):
                raise TypeError(f"{name}: {about[name]!r}")
        roles, knows = (_words(about[name]) for name in ("roles", "knows"))
        return cls(
            method=str(about["method"]),
            code=str(about["code"]),
            parameters=about["parameters"],
            roles=roles,
            knows=knows,
            proxy=None if about["proxy"] is None else str(about["proxy"]),
            counts=tuple(int(count) for count in about["counts"]),
            lr=float(about["lr"]),
            steps=int(about["steps"]),
            keeps_rows=about["keeps_rows"],
        )


def _words(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"{given!r} in the place of names")
    return tuple(given)


@dataclass(frozen=True)
class ModelMetadata:
    path: Path
    about: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, about: Mapping[str, Any]) -> ModelMetadata:
        lacking = [name for name in NEEDED if name not in about]
        if lacking:
            raise FedekdError(f"{path} is no model of `fedekd export`: it does not say its {lacking[0]}")
        metadata = cls(path, about)
        try:
            metadata._check()
        except (ValueError, TypeError, OverflowError) as error:
            raise FedekdError(f"{path} is damaged: its metadata cannot be right ({error}); export it again") from None
        return metadata

    def _check(self) -> None:
        """Read everything once, so that a damaged file is found here and not somewhere in the middle of its use."""
        if self.about["task"] not in TASKS or len(self.shape) not in (1, 3) or min(*self.shape, self.outputs) < 1:
            raise ValueError(f"a {self.about['task']} from {self.shape} to {self.outputs}")
        if max(*self.shape, self.outputs) > MOST or math.prod(self.shape) > MOST_VALUES:
            raise ValueError(f"rows of shape {self.shape} and {self.outputs} outputs")
        for name in ("seed", "position", "scale", "target", "labels", "columns", "answers", "reading", "fill", "round"):
            getattr(self, name)
        if not (0 <= self.seed < 2**63 and 0 <= self.position < 2**32 and all(map(math.isfinite, self.target))):
            raise ValueError(f"seed {self.seed}, client number {self.position} or target {self.target}")
        for name in ("value", "local", "delta", "value_at_round"):
            self.number(name)

    def number(self, name: str) -> float:
        value = self.about.get(name)
        return float("nan") if value is None else float(value)

    @property
    def client(self) -> str:
        return str(self.about["client"])

    @property
    def method(self) -> str:
        return str(self.about["method"])

    @property
    def seed(self) -> int:
        return int(self.about.get("seed", 0))

    @property
    def round(self) -> tuple[int, int] | None:
        """The round that the model is from, and how many there were; None in files that do not say so."""
        names = ("round", "rounds")
        if any(self.about.get(name) is None for name in names):
            return None
        round, rounds = (int(self.about[name]) for name in names)
        return round, rounds

    @property
    def position(self) -> int:
        """The client's number, which a factory may be given."""
        return int(self.about.get("number", 0))

    @property
    def model(self) -> str:
        """The factory that built it, module:function."""
        return str(self.about["model"])

    @cached_property
    def answers(self) -> Answers | None:
        """None where the answer is the private model's."""
        return Answers.of(self.about["answers"]) if "answers" in self.about else None

    @property
    def keeps_rows(self) -> bool:
        return self.answers is not None and self.answers.keeps_rows

    @property
    def classifies(self) -> bool:
        return bool(self.about["task"] == "classification")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.about["shape"])

    @property
    def outputs(self) -> int:
        return int(self.about["outputs"])

    @cached_property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Gain and shift: a model's input is raw * gain + shift."""
        gain, shift = (np.asarray(self.about[name], np.float32) for name in ("gain", "shift"))
        if np.broadcast_shapes(gain.shape, shift.shape, self.shape) != self.shape:
            raise ValueError(f"gain of shape {gain.shape} for inputs of shape {self.shape}")
        if not (np.isfinite(shift).all() and np.isfinite(gain).all() and gain.all()):
            raise ValueError("a gain or shift that is no number")
        return gain, shift

    @cached_property
    def reading(self) -> Reading:
        """How the table was read that it was trained on, as far as new rows are read alike."""
        about = self.about.get("reading", {})
        if not isinstance(about, dict):
            raise TypeError(f"reading: {about!r}")
        reading = Reading.of({name: about.get(name) for name in ("decimal", "dates", "na_values")})
        if reading.decimal not in (".", ",") or reading.dates not in ("text", "age", "drop"):
            raise ValueError(f"reading: {about!r:.80}")
        _words(list(reading.na_values or ()))
        return reading

    @cached_property
    def fill(self) -> np.ndarray | None:
        """What a missing value in each column becomes; None where new rows must have none."""
        if "fill" not in self.about:
            return None
        values = np.asarray(self.about["fill"], np.float32)
        if values.shape != self.shape or not np.isfinite(values).all():
            raise ValueError("values in the place of missing ones that are no numbers")
        return values

    @property
    def top(self) -> float | None:
        """The raw value that stands for white, where pixels were scaled by a fixed range; None: standardised."""
        gain, _ = self.scale
        return float(2 / gain) if len(self.shape) == 3 and gain.ndim == 0 else None

    @cached_property
    def target(self) -> tuple[float, float]:
        """Mean and deviation that bring a regression's output back to the user's units."""
        return float(self.about["target_mean"]), float(self.about["target_std"])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        names = tuple(str(label) for label in self.about.get("labels", ()))
        if names and len(names) != self.outputs:
            raise ValueError(f"{len(names)} labels for {self.outputs} outputs")
        return names or tuple(str(k) for k in range(self.outputs))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        names = tuple(str(column) for column in self.about.get("columns", ()))
        if names and (len(names),) != self.shape:
            raise ValueError(f"{len(names)} columns for inputs of shape {self.shape}")
        return names
