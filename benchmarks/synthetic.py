"""Images in the shape of FashionMNIST from a fixed seed: a coarse pattern for each class, under noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLIENTS, CLASSES, SIDE, BLOCK = 6, 10, 28, 4
SEED = 20261115


def make(path: Path, train: int, test: int) -> None:
    """Six clients of equal size in one .npz: train_x, train_y, test_x, test_y, client by client."""
    rng = np.random.default_rng(SEED)
    blocks = rng.random((CLASSES, SIDE // BLOCK, SIDE // BLOCK)) < 0.5
    patterns = np.kron(blocks, np.ones((BLOCK, BLOCK)))
    arrays = {}
    for split, size in (("train", train), ("test", test)):
        y = rng.integers(0, CLASSES, (CLIENTS, size))
        pixels = 60 + 120 * patterns[y] + rng.normal(0, 50, (CLIENTS, size, SIDE, SIDE))
        arrays[f"{split}_x"] = pixels.clip(0, 255).astype(np.uint8)
        arrays[f"{split}_y"] = y.astype(np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
