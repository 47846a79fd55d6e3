"""What chunks that train side by side give: a stack as the paper's grid has them, in bf16.

    python benchmarks/gpu_lanes.py [LANES ...]

Thirty federations of six clients of unequal size, 34,561 images of 28x28 each, under three variants of FedeKD: 540
models. Seconds of each round and of measuring all models, and the memory at the peak, also to $OUT/gpu_lanes.json or
benchmarks/results.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import images
from gpu_methods import timed

from fedekd import methods
from fedekd.data import Dataset, Federation, Split
from fedekd.engines.job import Job, Training
from fedekd.engines.stacked import Stacked

ROUNDS, FEDERATIONS, ROWS, ALPHAS = 5, 30, 34_561, (0.1, 0.3, 0.5)
VARIANTS = ("fedekd", "fedekd-entropy", "fedekd-half")


def federation(dataset: Dataset, seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    shares = np.maximum(rng.dirichlet([4 * ALPHAS[seed % 3]] * 6), 0.004)
    splits = tuple(
        Split(*(rng.choice(len(dataset.y), max(8, int(part * ROWS * share))) for part in (0.6, 0.2, 0.2)))
        for share in shares / shares.sum()
    )
    shift, gain = np.asarray(-1, np.float32), np.asarray(2 / 255, np.float32)
    return Federation(dataset, splits, tuple("012345"), {"kind": "iid", "alpha": None}, shift, gain, 0.0, 1.0)


def measured(dataset: Dataset, lanes: int) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    training = Training(ROUNDS + 1, 2, 64, 1e-4, device="cuda", precision="bf16")
    every = [federation(dataset, seed) for seed in range(FEDERATIONS)]
    jobs = [Job(one, methods.get(name), seed, training) for name in VARIANTS for seed, one in enumerate(every)]
    rounds, measuring = ([round(t, 3) for t in times] for times in timed(Stacked(jobs, lanes=lanes), ROUNDS))
    gibibytes = round(torch.cuda.max_memory_reserved() / 2**30, 1)
    return {"lanes": lanes, "rounds": rounds, "measuring": measuring, "reserved": gibibytes}


if __name__ == "__main__":
    dataset = Dataset("random", "classification", *images(), 10)
    found = []
    for lanes in map(int, sys.argv[1:] or ("1", "2", "3", "4")):
        found.append(measured(dataset, lanes))
        print(found[-1], flush=True)
        path = Path(os.environ.get("OUT", Path(__file__).parent / "results")) / "gpu_lanes.json"
        path.write_text(json.dumps(found, indent=1))
