"""Taking networks apart into layers, and putting layers of several together again: the surgery of pFedHR.

A reassembled network is {name: tensor}, so that it can travel: the layers' weights, the linear maps that stitch them,
and "structure", whole numbers that say how to run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adam import adam

from fedekd.errors import FedekdError

LAYERS = (nn.Conv2d, nn.Linear)
SIZES = (4, 6)  # fewest and most layers of a candidate
ROWS = 256  # at once, where no gradient is needed
Network = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a client's network, and how it stands to others."""

    module: nn.Conv2d | nn.Linear
    depth: int  # its place in its own network
    reads: tuple[int, int, int]  # channels, height and width of what enters it there
    grams: Tensor  # [2, N, N]: centred, of norm 1, of what enters and of what leaves it

    @property
    def convolves(self) -> bool:
        return isinstance(self.module, nn.Conv2d)


def layers(network: nn.Module, x: Tensor) -> list[Layer]:
    """A network's convolutions and linear layers in the order in which these rows pass through them."""
    seen: dict[nn.Module, tuple[torch.Size, Tensor]] = {}

    def look(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen.setdefault(module, (given[0].shape, torch.stack([gram(given[0]), gram(output)])))

    hooks = [module.register_forward_hook(look) for module in network.modules() if isinstance(module, LAYERS)]
    try:
        with torch.no_grad():
            network(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not any(isinstance(module, nn.Linear) for module in seen):
        raise FedekdError(f"{type(network).__name__} has no linear layer, so it cannot be reassembled")
    found: list[Layer] = []
    channels = 0
    for module, (shape, grams) in seen.items():
        if isinstance(module, nn.Conv2d):
            reads, channels = (shape[1], shape[2], shape[3]), module.out_channels
        else:
            assert isinstance(module, nn.Linear)
            reads, channels = _map_of(module.in_features, channels), 0
        found.append(Layer(module, len(found), reads, grams))
    return found


def _map_of(features: int, channels: int) -> tuple[int, int, int]:
    """The square map that a linear layer reads where it follows a convolution of so many channels; else a vector."""
    side = isqrt(features // channels) if channels else 0
    return (channels, side, side) if side and channels * side * side == features else (features, 1, 1)


# Which layers are alike


def gram(activations: Tensor) -> Tensor:
    """Inner products of centred rows, of norm 1: the inner product of two such matrices is their linear CKA."""
    rows = activations.flatten(1).float()
    rows = rows - rows.mean(0)
    products = rows @ rows.T
    return products / products.norm().clamp(min=torch.finfo(torch.float32).tiny)


def likeness(a: Tensor, b: Tensor) -> Tensor:
    """[L, K]: CKA of the inputs plus CKA of the outputs. The distance of two layers is one over it."""
    unit = b / b.flatten(2).norm(dim=-1)[..., None, None].clamp(min=torch.finfo(torch.float32).tiny)
    return torch.einsum("lsij,ksij->lk", a, unit)


def grouped(found: Sequence[Layer], groups: int, turns: int, draw: np.random.Generator) -> list[list[Layer]]:
    """K-means of layers. A centre is the mean of its members' Gram matrices, since their widths differ."""
    grams = torch.stack([layer.grams for layer in found])
    centres = grams[draw.permutation(len(found))[:groups]]
    for _ in range(turns):
        nearest = likeness(grams, centres).argmax(1)
        centres = torch.stack([grams[nearest == k].mean(0) for k in nearest.unique()])
    nearest = likeness(grams, centres).argmax(1)
    return [
        [layer for layer, k in zip(found, nearest.tolist(), strict=True) if k == group]
        for group in sorted(set(nearest.tolist()))
    ]


def chosen(groups: Sequence[Sequence[Layer]], draw: np.random.Generator) -> list[Layer]:
    """Layers for one candidate: one of each group, one of each kind, then any; convolutions first, by depth."""
    every = [layer for group in groups for layer in group]
    size = int(draw.integers(SIZES[0], SIZES[1] + 1))
    taken: list[Layer] = [group[int(draw.integers(len(group)))] for group in groups]
    for kind in (False, True):
        some = [layer for layer in every if layer.convolves == kind]
        if some and not any(layer.convolves == kind for layer in taken):
            taken.append(some[int(draw.integers(len(some)))])
    rest = [layer for layer in every if layer not in taken]
    taken += [rest[i] for i in draw.permutation(len(rest))[: max(0, size - len(taken))]]
    return sorted(taken, key=lambda layer: (not layer.convolves, layer.depth))


# Networks made of layers


def assembled(
    parts: Sequence[Layer], inputs: Sequence[int], outputs: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Copies of the layers with new maps between them and a new classifier; ``inputs`` is the shape of a row."""
    device = parts[0].module.weight.device
    network: dict[str, Tensor] = {}
    structure = []
    width, is_map = int(inputs[0]) if len(inputs) == 3 else int(np.prod(inputs)), len(inputs) == 3
    for i, layer in enumerate(parts):
        module = layer.module
        channels, height, side = layer.reads if is_map or layer.convolves else (int(np.prod(layer.reads)), 1, 1)
        how = _how(module) if isinstance(module, nn.Conv2d) else [0] * 7
        structure.append([int(layer.convolves), height, side, *how])
        network[f"{i}.map"] = _drawn(channels, width, generator).to(device)
        network[f"{i}.weight"] = module.weight.detach().clone()
        network[f"{i}.bias"] = torch.zeros(len(module.weight), device=device)
        if module.bias is not None:
            network[f"{i}.bias"] += module.bias.detach()
        width, is_map = len(module.weight), layer.convolves
    network["classifier.weight"] = _drawn(outputs, width, generator).to(device)
    network["classifier.bias"] = torch.zeros(outputs, device=device)
    return {"structure": torch.tensor(structure, device=device), **network}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _how(module: nn.Conv2d) -> list[int]:
    """Stride, padding, dilation and groups of a convolution."""
    padding = module.padding
    if isinstance(padding, str):
        reach = [d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        padding = (reach[0], reach[1]) if padding == "same" else (0, 0)
    return [*module.stride, *padding, *module.dilation, module.groups]


def _drawn(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """As torch draws a linear layer's weights."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / columns**0.5


def run(network: Network, x: Tensor) -> Tensor:
    """The logits of a reassembled network. A map is resized to the size that the next layer knows."""
    for i, (convolves, height, width, *how) in enumerate(network["structure"].tolist()):
        x = x if x.dim() == 4 else x.flatten(1)[..., None, None]
        x = torch.einsum("oc,bchw->bohw", network[f"{i}.map"], _resized(_resized(x, height, 2), width, 3))
        weight, bias = network[f"{i}.weight"], network[f"{i}.bias"]
        if convolves:
            x = F.conv2d(x, weight, bias, tuple(how[:2]), tuple(how[2:4]), tuple(how[4:6]), how[6])
        else:
            x = F.linear(x.flatten(1), weight, bias)
        x = torch.relu(x)
    return F.linear(x, network["classifier.weight"], network["classifier.bias"])


def _resized(x: Tensor, size: int, dim: int) -> Tensor:
    """Adaptive average pooling along one side, as a product of matrices: torch's own is not deterministic on a GPU."""
    old = x.shape[dim]
    if old == size:
        return x
    pool = torch.zeros(size, old)
    for i in range(size):
        start, stop = i * old // size, -(-(i + 1) * old // size)
        pool[i, start:stop] = 1 / (stop - start)
    return torch.movedim(torch.movedim(x, dim, -1) @ pool.T.to(x), -1, dim)


def tuned(
    network: Network, x: Tensor, y: Tensor, epochs: int, size: int, rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """The network after some epochs of cross-entropy on these rows, all of its weights trained with Adam."""
    weights = {n: t.detach().clone().requires_grad_() for n, t in network.items() if t.is_floating_point()}
    trained = list(weights.values())
    means, squares = ([torch.zeros_like(w) for w in trained] for _ in range(2))
    steps = [torch.zeros(()) for _ in trained]
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).to(y.device).split(size):
            with torch.enable_grad():
                loss = F.cross_entropy(run({**network, **weights}, x[rows]), y[rows])
            gradients = list(torch.autograd.grad(loss, trained))
            with torch.no_grad():
                adam(  # its class would import torch._dynamo, which takes seconds
                    trained, gradients, means, squares, [], steps, amsgrad=False, beta1=0.9, beta2=0.999, lr=rate,
                    weight_decay=0.0, eps=1e-8, maximize=False,
                )  # fmt: skip
    return {n: weights[n].detach() if n in weights else t for n, t in network.items()}


@torch.no_grad()
def outputs(network: nn.Module | Network, x: Tensor) -> Tensor:
    parts = [network(rows) if isinstance(network, nn.Module) else run(network, rows) for rows in x.split(ROWS)]
    return torch.cat(parts).float()


def agreement(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine of two networks' outputs, row by row."""
    return F.cosine_similarity(a, b, dim=-1).mean()
