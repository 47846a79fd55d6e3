"""Layers whose result depends on more than weights and inputs: dropout and batch norm, as both engines need them.

Dropout draws from its client's own stream, a hash of (key, step, call, place) that gives the same on every device. So
a client drops the same values whether it trains alone or in a stack. In a stack, batch norm leaves padding out of its
statistics, and gives its new running statistics back instead of writing them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedekd import rng

GOLDEN, OTHER = 0x1E3779B9, 0x5BD1E995  # odd numbers that spread what they are multiplied with over all bits
DROPOUTS: dict[type[nn.Module], int] = {nn.Dropout: 1, nn.Dropout1d: 2, nn.Dropout2d: 2, nn.Dropout3d: 2}
"""And how many axes of its input have an own draw: the latter drop whole channels of a sample."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass
class TrainingPass:
    """What a forward pass in training mode has beside weights and inputs."""

    key: Tensor | None = None  # of the dropout in this step, int32
    real: Tensor | None = None  # [B] which rows are no padding; None: all
    calls: int = 0
    statistics: dict[str, Tensor] = field(default_factory=dict)  # of batch norms, by name: what comes after this batch


_now: TrainingPass | None = None


@contextmanager
def training_pass(now: TrainingPass | None) -> Iterator[None]:
    """The layers of this module take what they need from ``now`` inside the block."""
    global _now
    before, _now = _now, now
    try:
        yield
    finally:
        _now = before


# --- dropout ------------------------------------------------------------------------------------------------------


def dropout_key(seed: int, role: str, client: int, round: int, again: int) -> int:
    """The key of one client's training of a role; ``again``: how often the role was trained before in that round."""
    return rng.integer(seed, "dropout", role, client, round, *((again,) if again else ())) & 0x7FFFFFFF


def step_key(keys: Tensor, step: Tensor | int) -> Tensor:
    """The keys of one step of the optimiser, by its number."""
    return _mix(keys + (torch.as_tensor(step, device=keys.device) * GOLDEN).to(torch.int32))


def drops(module: nn.Module) -> bool:
    return any(isinstance(layer, OwnDropout) and layer.p > 0 for layer in module.modules())


def own_streams(module: nn.Module) -> nn.Module:
    """The same module; its dropout layers draw from the client's stream. Other random layers are left as they are."""
    for layer in module.modules():
        if type(layer) in DROPOUTS:
            axes = DROPOUTS[type(layer)]
            layer.__class__ = OwnDropout
            layer.__dict__["axes"] = axes
    return module


class OwnDropout(_DropoutNd):
    axes: int

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        if _now is None or _now.key is None:  # as where a site trains with noise, whose draws nobody may know
            return (torch.dropout if self.axes == 1 else torch.feature_dropout)(x, self.p, True)
        shape = x.shape if self.axes == 1 else (*x.shape[:2], *[1] * (x.dim() - 2))
        count = torch.Size(shape).numel()
        key = _mix(_now.key + (_now.calls * OTHER) % 2**31)
        _now.calls += 1
        drawn = _mix(_mix(torch.arange(count, dtype=torch.int32, device=x.device)) ^ key) & 0x7FFFFFFF
        kept = (drawn >= int(self.p * 2**31)).view(shape)
        return x * (kept.to(x.dtype) / (1 - self.p))


def _mix(z: Tensor) -> Tensor:
    """A hash of 32 bits: two multiplications, whose overflow wraps around in int32."""
    z = (z ^ _shifted(z, 16)) * 0x21F0AAAD
    z = (z ^ _shifted(z, 15)) * 0x735A2D97
    return z ^ _shifted(z, 15)


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & (0x7FFFFFFF >> (by - 1))


# --- batch norm ---------------------------------------------------------------------------------------------------


def own_statistics(module: nn.Module) -> nn.Module:
    """The same module; its batch norms are those of a stack."""
    for path, layer in module.named_modules():
        if type(layer) in NORMS:
            layer.__class__ = StackedBatchNorm
            layer.__dict__["path"] = f"{path}." if path else ""
    return module


class StackedBatchNorm(nn.modules.batchnorm._BatchNorm):
    path: str

    def _check_input_dim(self, x: Tensor) -> None:
        """Nothing to check: the serial engine's layers have checked it in the dry pass."""

    def forward(self, x: Tensor) -> Tensor:
        wide, shape = x.float(), (-1, *[1] * (x.dim() - 2))
        if self.training:
            mean, var = self._of_batch(wide)
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            mean, var = self.running_mean, self.running_var
        scale = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return torch.addcmul(shift.view(shape), wide, scale.view(shape)).to(x.dtype)

    def _of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance over the rows that are no padding, which also move the running ones."""
        axes, places = (0, *range(2, x.dim())), x[0, 0].numel()
        real = None if _now is None else _now.real
        if real is None:
            var, mean = torch.var_mean(x, axes, correction=0)
            count = torch.full((), x.shape[0] * places, dtype=x.dtype, device=x.device)
        else:
            weight = real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
            count = (weight.sum() * places).clamp(min=1)
            mean = (x * weight).sum(axes) / count
            centred = (x - mean.view(-1, *[1] * (x.dim() - 2))) * weight
            var = centred.square().sum(axes) / count
        if _now is not None:
            self._move(_now.statistics, mean.detach(), var.detach() * (count / (count - 1).clamp(min=1)))
        return mean, var

    def _move(self, statistics: dict[str, Tensor], mean: Tensor, var: Tensor) -> None:
        names = {own: self.path + own for own in ("running_mean", "running_var", "num_batches_tracked")}
        old = {own: statistics.get(name, getattr(self, own)) for own, name in names.items()}
        tracked = old["num_batches_tracked"] + 1
        share = 1 / tracked.to(mean.dtype) if self.momentum is None else self.momentum
        new = {
            "running_mean": old["running_mean"] * (1 - share) + mean * share,
            "running_var": old["running_var"] * (1 - share) + var * share,
            "num_batches_tracked": tracked,
        }
        statistics |= {names[own]: tensor for own, tensor in new.items()}
