"""Named models on one GPU: the serial engine step by step and with CUDA graphs, stacks, and a mixed federation.

    python benchmarks/gpu_mixed.py [--quick] [--mixed] [MODEL ...]

Images of 3x32x32, batch 64, local training with Adam, whole rounds. Every row is written as soon as it is known (to
$OUT/gpu_mixed.json, or benchmarks/results), and what is there already is not measured again. The mixed federation of
three architectures is compared with the three alone: 1.0 would be as quick as one after another.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from gpu import BATCH, federation

from fedekd import methods, models
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked

MODELS = ("resnet18", "resnet18-gn", "resnet", "resnet-gn", "vit", "cnn-large")
MIXED = ("cnn", "resnet", "vit")
CLIENTS, ROUNDS, SHAPE = 60, 3, (3, 32, 32)


def seconds_of(engine: Any) -> float:
    """A round, graphs captured."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measured(kind: str, model: str, clients: int, batches: int, precision: str, chunk: int = 60) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    training = Training(ROUNDS, 1, BATCH, 1e-4, device="cuda", precision=precision)
    data = federation(clients, batches * BATCH, 4000, SHAPE)
    job = Job(data, methods.get("local"), 0, training, models.factory("private", model))
    engine: Any
    if kind == "stacked":
        engine = Stacked([job], chunk=chunk)
    else:
        engine = Serial(job)
        for client in engine.clients:
            client.graphs = kind == "serial, CUDA graphs"
    seconds = seconds_of(engine)
    captured = [client.graphs for client in engine.clients] if isinstance(engine, Serial) else []
    return {
        "seconds": seconds,
        "samples_per_s": clients * batches * BATCH / seconds,
        "gib": torch.cuda.max_memory_allocated() / 2**30,
        "at_once": [stack.limit for stack in engine.stacks] if kind == "stacked" else 1,
        "captured": all(captured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batches", type=int, help="a client's steps in a round (default: 30; 10 with --quick)")
    parser.add_argument("--mixed", action="store_true", help="the mixed federation alone")
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    batches = options.batches or (10 if options.quick else 30)
    path = Path(os.environ.get("OUT", Path(__file__).parent / "results")) / "gpu_mixed.json"
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)

    def row(precision: str, kind: str, model: str, clients: int, chunk: int = 60) -> float:
        name = f"{precision} {model} {kind}, {clients} clients" + (f", {chunk} at once" if kind == "stacked" else "")
        if name not in table:
            try:
                table[name] = measured(kind, model, clients, batches, precision, chunk)
            except Exception as error:
                table[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            path.write_text(json.dumps(table, indent=1))
        found = table[name]
        said = found.get("error") or f"{found['samples_per_s']:12,.0f} samples/s {found['gib']:6.1f} GiB"
        if kind == "serial, CUDA graphs" and not found.get("captured", True):
            said += "  NOT CAPTURED"
        print(f"{name:64s} {said}", flush=True)
        return float(found.get("seconds", "nan"))

    for precision in ("bf16",) if options.quick else ("tf32", "bf16"):
        for model in () if options.mixed else options.models or MODELS:
            row(precision, "serial, eager", model, 3)
            row(precision, "serial, CUDA graphs", model, 3)
            for chunk in (60, 12, 4):
                row(precision, "stacked", model, CLIENTS, chunk)
        if not options.models:
            alone = sum(row(precision, "stacked", model, CLIENTS // len(MIXED)) for model in MIXED)
            together = row(precision, "stacked", ",".join(MIXED), CLIENTS)
            print(f"{precision} three alone / mixed: {alone / together:.2f}", flush=True)


if __name__ == "__main__":
    main()
