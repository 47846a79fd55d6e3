"""The optimiser of a client's own steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedekd.engines.job import MOMENTUM, Training
from fedekd.errors import unknown


class FusedOptimizer:
    """The steps of torch's fused Adam, AdamW and SGD to the bit, by torch's functions for them.

    Its classes import torch._dynamo for the first object that is made, which takes a second or two of every process;
    they are left to CUDA graphs and to Opacus (``make_optimizer``).
    """

    def __init__(self, training: Training, weights: Sequence[Tensor]) -> None:
        if training.optimizer not in ("adam", *MOMENTUM):
            raise unknown("optimizer", training.optimizer, ["adam", *MOMENTUM])
        self.training, self.weights = training, weights
        self.state: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        """Of Adam by the weight's place: how many steps, and the running means of gradients and of their squares."""
        self.velocity: dict[int, Tensor | None] = {}

    def zero_grad(self) -> None:
        for w in self.weights:
            w.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A weight without a gradient stays as it is."""
        places = [k for k, w in enumerate(self.weights) if w.grad is not None]
        weights = [self.weights[k] for k in places]
        gradients = [w.grad for w in weights if w.grad is not None]
        if self.training.optimizer == "adam":
            self._adam(places, weights, gradients)
        else:
            self._sgd(places, weights, gradients)

    def _adam(self, places: list[int], weights: list[Tensor], gradients: list[Tensor]) -> None:
        for k, w in zip(places, weights, strict=True):
            if k not in self.state:
                steps = torch.zeros((), dtype=torch.float32, device=w.device)
                self.state[k] = (steps, torch.zeros_like(w), torch.zeros_like(w))
        states = [self.state[k] for k in places]
        (adamw if self.training.weight_decay else adam)(
            weights,
            gradients,
            [mean for _, mean, _ in states],
            [square for _, _, square in states],
            [],
            [steps for steps, _, _ in states],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.training.lr,
            weight_decay=self.training.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def _sgd(self, places: list[int], weights: list[Tensor], gradients: list[Tensor]) -> None:
        velocity = [self.velocity.get(k) for k in places]
        sgd(
            weights,
            gradients,
            velocity,
            fused=True,
            weight_decay=self.training.weight_decay,
            momentum=MOMENTUM[self.training.optimizer],
            lr=self.training.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self.velocity |= dict(zip(places, velocity, strict=True))
