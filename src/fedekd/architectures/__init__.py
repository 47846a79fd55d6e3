"""Models that ``--private`` and ``--proxy`` may name: one file for each family. Imports no torch.

A factory takes the shape of a row and the number of outputs, as a user's own does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Architecture(NamedTuple):
    family: str
    """The file that has it."""
    factory: str
    rows: str
    about: str


NAMED = {
    "cnn": Architecture("cnn", "medium", "images", "convolutions 64-128-128, a hidden layer of 256: the default"),
    "cnn-small": Architecture("cnn", "small", "images", "convolutions 32-64, a hidden layer of 128: the default proxy"),
    "cnn-large": Architecture("cnn", "large", "images", "convolutions 64-128-256-256, a hidden layer of 512"),
    "resnet": Architecture("resnet", "small", "images", "ResNet-8 with batch norm: 16-32-64 channels"),
    "resnet-gn": Architecture("resnet", "small_group", "images", "the same with group norm"),
    "resnet18": Architecture("resnet", "large", "images", "ResNet-18 for small images: 64-128-256-512, batch norm"),
    "resnet18-gn": Architecture("resnet", "large_group", "images", "the same with group norm"),
    "vit": Architecture("vit", "small", "images", "vision transformer: 4 blocks of width 64, dropout 0.1"),
    "mlp": Architecture("mlp", "medium", "tables, images", "hidden layers 128-128: the default for tables"),
    "mlp-small": Architecture("mlp", "small", "tables, images", "a hidden layer of 32: the default proxy for tables"),
    "mlp-large": Architecture("mlp", "large", "tables, images", "hidden layers 256-256-256, dropout 0.1"),
    "linear": Architecture("mlp", "linear", "tables, images", "no hidden layer"),
}


def factory(name: str) -> Any:
    found = NAMED[name]
    return getattr(import_module(f"{__name__}.{found.family}"), found.factory)


def name_of(code: str) -> str | None:
    """Which of them a factory is, named as module:function."""
    return next((n for n, a in NAMED.items() if code == f"{__name__}.{a.family}:{a.factory}"), None)
