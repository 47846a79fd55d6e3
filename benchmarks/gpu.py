"""Training throughput on one GPU, side by side: a bare eager loop, a tuned one, and the stacked engine.

    python benchmarks/gpu.py [--quick]

The model is the private CNN at 28x28, batch 64, forward + backward + Adam. FLOP/s count what the layers nominally need
(multiply and add, backward twice the forward), against the chip's own matrix product measured in the same run.
A table of what each method costs follows: gpu_methods.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedekd import methods, models
from fedekd.data import Dataset, Federation, Split
from fedekd.engines.job import Job, Training, precision
from fedekd.engines.stacked import Stacked

BATCH, ROWS = 64, 20_000
MACS = 784 * 64 * 9 + 196 * 128 * 64 * 9 + 49 * 128 * 128 * 9 + 1152 * 256 + 256 * 10
FLOP = 6 * MACS  # per training sample: forward 2 MACs, backward twice that


def images(rows: int = ROWS, shape: tuple[int, ...] = (1, 28, 28)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (rows, *shape), dtype=np.uint8), rng.integers(0, 10, rows)


def bare(seconds: float, tuned: bool, name: str) -> float:
    """One model in a hand-written loop; ``tuned`` keeps the data on the device and fuses Adam."""
    x, y = (torch.from_numpy(a) for a in images())
    model = models.private((1, 28, 28), 10).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=tuned)
    if tuned:
        x, y = x.cuda(), y.cuda()
    with precision(name, torch.device("cuda")):
        done, began = 0, time.perf_counter()
        while True:
            order = torch.randperm(ROWS, device=x.device).split(BATCH)
            for rows in order:
                if done == 20 * BATCH:  # warm
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                inputs = (x[rows].cuda(non_blocking=True).float() / 255 - 0.5) / 0.5
                with torch.autocast("cuda", torch.bfloat16, enabled=name == "bf16"):
                    loss = torch.nn.functional.cross_entropy(model(inputs), y[rows].cuda(non_blocking=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += BATCH
                if done % (50 * BATCH) == 0 and time.perf_counter() - began > seconds:
                    torch.cuda.synchronize()
                    return (done - 20 * BATCH) / (time.perf_counter() - began)


def federation(clients: int, rows_each: int, *of: Any) -> Federation:
    """Clients of equal size over `images`, which take ``of``."""
    x, y = images(*of)
    dataset = Dataset("random", "classification", x, y, 10)
    rng = np.random.default_rng(1)
    splits = tuple(Split(rng.choice(len(y), rows_each), np.arange(4), np.arange(4)) for _ in range(clients))
    names = tuple(str(k) for k in range(clients))
    shift, gain = np.asarray(-1, np.float32), np.asarray(2 / 255, np.float32)
    return Federation(dataset, splits, names, {"kind": "iid", "alpha": None}, shift, gain, 0.0, 1.0)


def ours(clients: int, rows_each: int, name: str, **options: Any) -> tuple[float, float]:
    """Samples/s of whole rounds of local training through the engine, schedules and transfers included."""
    training = Training(rounds=4, epochs=1, batch_size=BATCH, lr=1e-4, device="cuda", precision=name)
    engine = Stacked([Job(federation(clients, rows_each), methods.get("local"), 0, training)], **options)
    rates = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(training.rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        rates.append(clients * rows_each / (time.perf_counter() - began))
    return statistics.median(rates[1:]), torch.cuda.max_memory_allocated() / 2**30


def chip(name: str) -> float:
    """FLOP/s of an 8192-cubed matrix product on random data."""
    with precision(name, torch.device("cuda")):
        kind = torch.bfloat16 if name == "bf16" else torch.float32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        return 10 * 2 * 8192**3 / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seconds, batches = (1.0, 30) if options.quick else (3.0, 80)
    table: list[dict[str, object]] = []

    def row(what: str, name: str, rate: float, memory: float | None = None) -> None:
        tflops = rate * FLOP / 1e12
        table.append({"what": what, "precision": name, "samples_per_s": rate, "tflops": tflops, "gib": memory})
        extra = f"  {memory:6.1f} GiB" if memory else ""
        print(f"{what:42s} {name:5s} {rate:12,.0f} samples/s {tflops:7.1f} TFLOP/s{extra}", flush=True)

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name in ("tf32", "bf16"):
        try:
            peak = chip(name)
            print(f"{'chip: 8192^3 matrix product':42s} {name:5s} {'':22s} {peak / 1e12:7.1f} TFLOP/s", flush=True)
            table.append({"what": "chip", "precision": name, "tflops": peak / 1e12})
            row("(a) bare eager loop", name, bare(seconds, False, name))
            row("(b) fused Adam, data on the device", name, bare(seconds, True, name))
            for clients in (6, 60, 240):
                row(f"(c) stacked engine, {clients} models", name, *ours(clients, batches * BATCH, name))
            for what, off in (("CUDA graphs", {"graphs": False}), ("fused kernels", {"fused": False})):
                row(f"    60 models without {what}", name, *ours(60, batches * BATCH, name, **off))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:2000], flush=True)
    out = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    (out / "gpu.json").write_text(json.dumps(table, indent=1))

    import gpu_methods  # which takes its images from here

    gpu_methods.show(gpu_methods.QUICK if options.quick else gpu_methods.METHODS)


if __name__ == "__main__":
    main()
