"""A client's models: how they are made, and what they give for its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedekd import models, parts
from fedekd.engines import augment, return_checks
from fedekd.engines.job import SERVER, Job, Rows, pick_device
from fedekd.engines.layers import own_streams
from fedekd.engines.model_checks import takes_channels_last
from fedekd.exchange import Message
from fedekd.models import trainable

EVALUATION_BATCH = 256


class ClientModels:
    """One model for each of the method's roles, on the device, with the rows that they are applied to."""

    def __init__(
        self, job: Job, number: int, rows: Rows | None = None, own: Mapping[str, nn.Module] | None = None
    ) -> None:  # fmt: skip
        """``own``: its models, where they need not be made."""
        self.job, self.method, self.task, self.number = job, job.method, job.task, number
        self.device = pick_device(job.training.device)
        self.data = rows or Rows.of(job)
        self.models: dict[str, nn.Module] = dict(own or {})
        for role in sorted(self.method.roles, key=lambda role: role in self.method.heads) if own is None else ():
            self.models[role] = self._build(role)
        self.models = {role: self.models[role] for role in self.method.roles}

    def _build(self, role: str) -> nn.Module:
        dataset, root = self.job.federation.dataset, self.method.root(role)
        if role in self.method.heads:
            return models.zero_head(self.models[self.method.heads[role]], dataset.outputs).to(self.device)
        make, shape = self.job.factory(root), dataset.x.shape[1:]
        module = models.build(root, make, shape, dataset.outputs, self.job.seed, self.number % SERVER)
        return self._placed(root, own_streams(module))

    def _placed(self, root: str, module: nn.Module) -> nn.Module:
        """On the device; for images in the memory order that convolutions are quickest in, where the model takes it."""
        if self.data.x.dim() != 4 or (self.device.type == "cpu" and _crashes(module)):
            return module.to(self.device)
        if not takes_channels_last(self.job, root, self.number, module):
            return module.to(self.device)
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def message(self, role: str) -> Message:
        """A role's full state, weights and buffers."""
        return self.models[role].state_dict()

    def weights(self, role: str, part: Any = None) -> dict[str, Tensor]:
        """A copy of a role's trainable weights, or of a part of them."""
        wanted = set(parts.names(part, self.models[role]))
        return {name: w.detach().clone() for name, w in trainable(self.models[role]).items() if name in wanted}

    @torch.no_grad()
    def _load(self, role: str, found: Message) -> None:
        state = self.models[role].state_dict()
        return_checks.fits(self.method, role, found, {name: t.shape for name, t in state.items()})
        for name, tensor in found.items():
            state[name].copy_(tensor)

    def _readable_weights(self) -> dict[str, dict[str, nn.Parameter]]:
        return {role: trainable(self.models[role]) for role in self.method.reads_weights}

    def _applied(self, role: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """A batch norm counts rows once: its running statistics are a copy's, thrown away."""
        module = self.models[role]
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        tree = {n: _laid_out(t, module.get_parameter(n)) for n, t in weights.items()}
        with self._autocast():
            return self.task.read(models.call(module, {**buffers, **tree}, x))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.training.precision == "bf16")

    def _forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the features if the method asked for them (else the outputs again)."""
        with self._autocast():
            if not self.method.needs_features:
                output = self.task.read(module(x))
                return output, output
            raw, features = models.with_features(module, x)
            return self.task.read(raw), features

    def _through(
        self, roles: Iterable[str], x: Tensor, known: Mapping[str, tuple[Tensor, Tensor]]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The outputs of these roles beside those that are known; a head's from the features of the model below it."""
        out, heads = dict(known), self.method.heads
        for role in roles:
            if role not in heads:
                out[role] = self._forward(self.models[role], x)
        for role in roles:
            if role in heads:
                below = out[heads[role]][1] if heads[role] in out else self._forward(self.models[heads[role]], x)[1]
                out[role] = self._head(role, below)
        return out

    def _head(self, role: str, features: Tensor) -> tuple[Tensor, Tensor]:
        features = features.detach()
        with self._autocast():
            return self.task.read(self.models[role](features)), features

    def _inputs(self, rows: Tensor, moves: Tensor | None = None, partners: Tensor | None = None) -> Tensor:
        return augment.inputs(self.data.x, self.data.scale, rows, moves, partners)

    @torch.no_grad()
    def outputs(
        self, role: str, rows: Tensor, moves: Tensor | None = None, partners: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A frozen model's outputs and features on whole splits; with ``moves``, on the rows as they are altered."""
        if role in self.method.heads:
            return self._head(role, self.outputs(self.method.heads[role], rows, moves, partners)[1])
        module, batches = self.models[role].eval(), rows.split(EVALUATION_BATCH)
        altered = [[None] * len(batches) if t is None else t.split(EVALUATION_BATCH) for t in (moves, partners)]
        pieces = [self._forward(module, self._inputs(*some)) for some in zip(batches, *altered, strict=True)]
        return torch.cat([o for o, _ in pieces]), torch.cat([f for _, f in pieces])


def _crashes(module: nn.Module) -> bool:
    """torch's CPU kernel for the gradient of a strided 1x1 convolution, channels last and on several threads, writes
    past its memory where the batch is odd (seen in torch 2.13)."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return any(set(layer.kernel_size) == {1} and set(layer.stride) != {1} for layer in convolutions)


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """The same numbers in the memory order of another tensor, on which the last bits of a convolution depend."""
    if tensor.stride() == like.stride():
        return tensor
    return tensor.new_empty_strided(like.shape, like.stride()).copy_(tensor)
