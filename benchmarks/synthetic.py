"""Images in the shape of FashionMNIST from a fixed seed: a coarse pattern for each class, under noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLIENTS, CLASSES, SIDE, BLOCK = 6, 10, 28, 4
SEED = 20261115


def make_patterns(rng: np.random.Generator) -> np.ndarray:
    blocks = rng.random((CLASSES, SIDE // BLOCK, SIDE // BLOCK)) < 0.5
    return np.kron(blocks, np.ones((BLOCK, BLOCK)))


def draw(rng: np.random.Generator, patterns: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [*shape, 28, 28], and their classes."""
    y = rng.integers(0, CLASSES, shape)
    pixels = 60 + 120 * patterns[y] + rng.normal(0, 50, (*shape, SIDE, SIDE))
    return pixels.clip(0, 255).astype(np.uint8), y.astype(np.int64)


def make(path: Path, train: int, test: int) -> None:
    """Six clients of equal size in one .npz: train_x, train_y, test_x, test_y, client by client."""
    rng = np.random.default_rng(SEED)
    patterns = make_patterns(rng)
    arrays = {}
    for split, size in (("train", train), ("test", test)):
        arrays[f"{split}_x"], arrays[f"{split}_y"] = draw(rng, patterns, (CLIENTS, size))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
