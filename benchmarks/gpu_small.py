"""Seconds a round where clients have few rows: a stack of 24 models on a tenth of OrganAMNIST, in bf16.

python benchmarks/gpu_small.py --data DIR [--methods fedekd,second-opinion]
"""

from __future__ import annotations

import argparse
import time

import torch

from fedekd.engines.stacked import Stacked
from fedekd.runs.plan import plan
from fedekd.settings import make_settings

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True, metavar="DIR", help="folder with organamnist.npz")
parser.add_argument("--methods", default="fedekd,second-opinion,ditto,fedrep")
parser.add_argument("--rounds", type=int, default=8)
given = parser.parse_args()

print("method            first round   a round   measuring")
for name in given.methods.split(","):
    settings = make_settings(
        {
            "dataset": "organamnist", "data": given.data, "alpha": 0.5, "fraction": 0.1, "seeds": "0-3", "lr": 1e-3,
            "rounds": 50, "methods": (name,), "device": "cuda", "precision": "bf16",
        }
    )  # fmt: skip
    engine = Stacked([run.job for run in plan(settings) if run.name == name])
    taken: list[tuple[float, float]] = []
    for _ in range(given.rounds):
        start = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        middle = time.perf_counter()
        engine.measure()
        torch.cuda.synchronize()
        taken.append((middle - start, time.perf_counter() - middle))
    later = sorted(taken[2:])
    print(f"{name:16} {taken[0][0]:11.2f} s {later[len(later) // 2][0]:8.3f} s {later[len(later) // 2][1]:9.3f} s")
