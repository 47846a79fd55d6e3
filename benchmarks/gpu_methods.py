"""What a method costs on a GPU beside FML, which trains both models without a gate: a stack of 60 models in bf16.

    python benchmarks/gpu_methods.py [--quick] [--small] [--photographs] [--chunk N] [METHOD ...]

Ten federations of six clients of unequal size, images of 28x28, batch 64, two epochs a round. "first" has the eager
steps, compiling and the capture of CUDA graphs; "round" is a later round; "kernels" and "busy" are of such a round: how
many kernels the GPU ran, and in what share of the round's time. Rows are written as soon as they are known, to
$OUT/gpu_methods.json or benchmarks/results. With --small clients have a tenth of the rows, and there are 24 models.
--photographs: a regression on 3x224x224, with a tenth of the rows, as Diabetic Retinopathy has them.
--chunk: at most so many models train together, so that a stack of 60 has several chunks side by side.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import ROWS, images
from torch.profiler import ProfilerActivity, profile

from fedekd import methods
from fedekd.data import Dataset, Federation, Split
from fedekd.engines.job import Job, Training
from fedekd.engines.stack import CHUNK
from fedekd.engines.stacked import Stacked

ROUNDS = 5
CLIENTS = (2600, 1900, 1300, 800, 500, 300)
VARIANTS = ("half", "ungated", "permuted", "entropy", "margin", "lse", "feature")
METHODS = (
    "local",
    "fedavg",
    "fml",
    "fedekd",
    *(f"fedekd-{name}" for name in VARIANTS),
    "fedekd@alone",
    "second-opinion",
)
QUICK = ("local", "fml", "fedekd", "fedekd-half", "fedekd-permuted", "fedekd-feature", "second-opinion")


@dataclass(frozen=True)
class Kind:
    """A size of job."""

    name: str
    share: float = 1.0
    federations: int = 10
    shape: tuple[int, ...] = (1, 28, 28)
    task: str = "classification"


USUAL, SMALL = Kind("gpu_methods"), Kind("gpu_methods_small", 0.1, 4)
PHOTOGRAPHS = Kind("gpu_methods_photographs", 0.1, shape=(3, 224, 224), task="regression")


def federation(kind: Kind) -> Federation:
    x, y = images(1000 if kind is PHOTOGRAPHS else ROWS, kind.shape)
    y, outputs = (y, 10) if kind.task == "classification" else (y.astype(np.float32), 1)
    rng = np.random.default_rng(1)
    splits = tuple(Split(*(rng.choice(len(y), int(kind.share * n) // part) for part in (1, 4, 4))) for n in CLIENTS)
    names = tuple(str(k) for k in range(len(CLIENTS)))
    shift, gain = np.asarray(-1, np.float32), np.asarray(2 / 255, np.float32)
    how = {"kind": "iid", "alpha": None}
    return Federation(Dataset("random", kind.task, x, y, outputs), splits, names, how, shift, gain, 0.0, 1.0)


def kernels_of(engine: Stacked) -> tuple[int, float, list[tuple[str, int, float]]]:
    """How many kernels a round has, their seconds together, and the ten that took most."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        engine.round()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name, []).append(event.device_time_total / 1e6)
    most = sorted(found.items(), key=lambda item: -sum(item[1]))[:12]
    top = [(name[:90], len(times), sum(times)) for name, times in most]
    return sum(map(len, found.values())), sum(map(sum, found.values())), top


def timed(engine: Stacked, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each round, and of measuring all models after it."""
    training, measuring = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        middle = time.perf_counter()
        engine.measure()
        torch.cuda.synchronize()
        training.append(middle - began)
        measuring.append(time.perf_counter() - middle)
    return training, measuring


def measured(name: str, kind: Kind, chunk: int) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    training = Training(ROUNDS + 1, 2, 64, 1e-4, device="cuda", precision="bf16")
    data = federation(kind)
    began = time.perf_counter()
    engine = Stacked([Job(data, methods.get(name), seed, training) for seed in range(kind.federations)], chunk=chunk)
    torch.cuda.synchronize()
    made = time.perf_counter() - began
    rounds, measuring = timed(engine, ROUNDS)
    kernels, busy, top = kernels_of(engine)
    typical = statistics.median(rounds[2:])
    return {
        "begin": made, "first": rounds[0], "second": rounds[1], "round": typical,
        "measure": statistics.median(measuring[1:]), "kernels": kernels, "busy": busy / typical, "top": top,
    }  # fmt: skip


def show(names: Sequence[str], kernels: bool = False, kind: Kind = USUAL, chunk: int = CHUNK) -> None:
    """Measure these methods and print a line for each, with the kernels that took most of a round if asked for."""
    path = Path(os.environ.get("OUT", Path(__file__).parent / "results")) / f"{kind.name}.json"
    table: dict[str, Any] = {}
    columns = ("begin", "first", "second", "round", "measure", "kernels")
    print(f"{'method':18}" + "".join(f"{name:>8}" for name in columns) + "  busy  / FML  measured")
    for name in names:
        try:
            found = table[name] = measured(name, kind, chunk)
        except Exception as error:
            print(f"{name:18} {type(error).__name__}: {error}"[:500], flush=True)
            continue
        path.write_text(json.dumps(table, indent=1))
        times = "".join(f"{found[k]:8.3f}" for k in columns[:-1])
        print(f"{name:18}{times} {found['kernels']:7,} {found['busy']:5.0%}", end="")
        for parts in (("round",), ("round", "measure")) if "fml" in table else ():
            ours, fmls = (sum(one[part] for part in parts) for one in (found, table["fml"]))
            print(f"{ours / fmls:7.2f}", end="")
        print(flush=True)
        for kernel, count, seconds in found["top"] if kernels else ():
            print(f"    {seconds * 1e3:8.2f} ms {count:6} x {kernel}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, four federations")
    parser.add_argument("--photographs", action="store_true", help="a regression on few images of 3x224x224")
    parser.add_argument("--kernels", action="store_true", help="the kernels that took most of a round")
    parser.add_argument("--chunk", type=int, default=CHUNK, metavar="N", help="models that train together at most")
    parser.add_argument("methods", nargs="*")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    kind = PHOTOGRAPHS if options.photographs else SMALL if options.small else USUAL
    show(options.methods or (QUICK if options.quick else METHODS), options.kernels, kind, options.chunk)
