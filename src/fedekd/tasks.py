"""Classification and regression: supervised loss, distillation loss, default energy, metric and its direction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedekd import gate
from fedekd.errors import unknown


@dataclass(frozen=True)
class Task(ABC):
    """What a method may ask of the problem. Every loss is per sample; the batch's mean is the caller's."""

    name: ClassVar[str]
    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    energy: ClassVar[str]

    @abstractmethod
    def read(self, raw: Tensor) -> Tensor:
        """A module's raw output as float32 logits [B, C] or predictions [B]."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The supervised loss."""

    @abstractmethod
    def distil(self, *, student: Tensor, teacher: Tensor) -> Tensor:
        """Distance of the student from the teacher, which gets no gradient."""

    @abstractmethod
    def score(self, output: Tensor, target: Tensor) -> float:
        """The metric over a whole split."""

    @abstractmethod
    def value(self, errors: np.ndarray) -> float:
        """The same, from the errors of a split's samples."""

    @abstractmethod
    def errors(self, output: Tensor, target: Tensor) -> Tensor:
        """Sample by sample: 1 where the class is wrong and 0 where it is right, or the error in the target's units."""

    @abstractmethod
    def answers(self, output: Tensor, target: Tensor) -> Tensor:
        """[B, columns], what ``fedekd.scores`` measure: the target beside the classes' probabilities or the prediction.

        Those of a regression are in the target's units, but for a shift.
        """


@dataclass(frozen=True)
class Classification(Task):
    name = "classification"
    metric = "accuracy"
    higher_is_better = True
    energy = "kl"

    def read(self, raw: Tensor) -> Tensor:
        return raw.float()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        classes = output.ndim == 2 and target.dtype == torch.long and target.shape == output.shape[:1]
        if classes and (fused := gate.kernels(output)):
            return fused.cross_entropy(output, target)
        return F.cross_entropy(output, target, reduction="none")

    def distil(self, *, student: Tensor, teacher: Tensor) -> Tensor:
        return gate.kl(teacher.detach(), student)

    def score(self, output: Tensor, target: Tensor) -> float:
        return float((output.argmax(-1) == target).double().mean())

    def value(self, errors: np.ndarray) -> float:
        return float(np.count_nonzero(errors == 0) / len(errors)) if len(errors) else math.nan

    def errors(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(-1) != target).int()

    def answers(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.cat([target.unsqueeze(-1).float(), output.softmax(-1)], -1)


@dataclass(frozen=True)
class Regression(Task):
    """Targets may be standardised for training; ``unit`` brings the error back to the user's units."""

    unit: float | Tensor = 1.0
    name = "regression"
    metric = "rmse"
    higher_is_better = False
    energy = "squared"

    def read(self, raw: Tensor) -> Tensor:
        return raw.float().squeeze(-1) if raw.dim() > 1 else raw.float()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square()

    def distil(self, *, student: Tensor, teacher: Tensor) -> Tensor:
        return gate.squared_error(teacher.detach(), student)

    def score(self, output: Tensor, target: Tensor) -> float:
        return float(self.unit) * float((output - target).double().square().mean().sqrt())

    def value(self, errors: np.ndarray) -> float:
        return float(np.sqrt(np.square(errors.astype(np.float64)).mean()))

    def errors(self, output: Tensor, target: Tensor) -> Tensor:
        return self.unit * (output - target)

    def answers(self, output: Tensor, target: Tensor) -> Tensor:
        return self.unit * torch.stack([target, output], -1)


def make_task(name: str, unit: float | Tensor = 1.0) -> Task:
    if name == "classification":
        return Classification()
    if name == "regression":
        return Regression(unit)
    raise unknown("task", name, ["classification", "regression"])
