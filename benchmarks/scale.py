"""The same total data over 6, 60 and 600 clients: time and memory of the stacked engine; and stacks that do not fit.

    python benchmarks/scale.py

A stack that does not fit is tried twice. Under a limit of half the memory that it needs, its weights are compared in
fp32 with those of the whole stack, beside what a nudge of one ten-millionth at the start does to them: training on
random labels magnifies last bits. Then 160 models on 224x224 images meet a GPU on which most memory is taken.
"""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from gpu import BATCH, federation
from torch import Tensor

from fedekd import methods, models
from fedekd.engines.job import Job, Training
from fedekd.engines.stack import CHUNK
from fedekd.engines.stacked import Stacked

TOTAL = 600 * BATCH * 4
GIB = 2**30
ROUNDS = 4
ROOM = 60  # GiB left free for a stack that takes about twice as much
NUDGE = 1e-7


def measure(
    clients: int,
    rows_each: int,
    *of: Any,
    chunk: int = CHUNK,
    rounds: int = ROUNDS,
    epochs: int = 2,
    precision: str = "tf32",
    nudge: float = 0.0,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What some rounds of FedeKD take, and the private weights after them; ``nudge`` moves those at the start."""
    training = Training(rounds, epochs, BATCH, 1e-4, device="cuda", precision=precision)
    gc.collect()  # the engine before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    engine = Stacked([Job(federation(clients, rows_each, *of), methods.get("fedekd"), 0, training)], chunk=chunk)
    for w in engine.stacks[0].weights["private"].values():
        w.mul_(1 + nudge * torch.randn_like(w))
    held = torch.cuda.memory_allocated() - before
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    row = {
        "clients": clients,
        "samples_each": rows_each,
        "seconds_by_round": times,
        "parameters_gib": sum(w.numel() * 4 for tree in engine.stacks[0].weights.values() for w in tree.values()) / GIB,
        "held_gib": held / GIB,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "models_at_once": engine.stacks[0].limit,
    }
    return row, {n: w.cpu() for n, w in engine.stacks[0].weights["private"].items()}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far two stacks have come apart, as a part of how far they have moved from the start."""
    start = dict(models.build("private", models.private, (1, 28, 28), 10, 0, 0).named_parameters())
    apart = sum(float((one[n] - other[n]).double().square().sum()) for n in one)
    moved = sum(float((one[n] - start[n].detach()).double().square().sum()) for n in one)
    return float((apart / moved) ** 0.5)


def main() -> None:
    rows: list[dict[str, Any]] = []

    def keep(what: str, row: dict[str, Any], **more: Any) -> None:
        rows.append({"what": what, **row, **more})
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}
        print(shown | {"seconds_by_round": [round(t, 3) for t in row["seconds_by_round"]]}, flush=True)

    print(torch.cuda.get_device_name(), "torch", torch.__version__, f"{TOTAL:,} samples in all")
    for clients in (6, 60, 600):
        keep("same data", measure(clients, TOTAL // clients)[0])
    tight: dict[str, Any] = {"chunk": 60, "rounds": 2, "precision": "fp32"}
    whole, weights = measure(60, 8 * BATCH, **tight)
    keep("60 at once", whole, distance_after_nudge=distance(weights, measure(60, 8 * BATCH, nudge=NUDGE, **tight)[1]))
    room = whole["held_gib"] + (whole["peak_gib"] - whole["held_gib"]) / 2
    torch.cuda.set_per_process_memory_fraction(room * GIB / torch.cuda.mem_get_info()[1])
    cut, others = measure(60, 8 * BATCH, **tight)
    keep(f"60 at once in {room:.1f} GiB", cut, distance=distance(weights, others))
    torch.cuda.set_per_process_memory_fraction(1.0)
    free = torch.cuda.mem_get_info()[0] / GIB
    taken = torch.empty(int((free - ROOM) * GIB), dtype=torch.uint8, device="cuda")
    keep(f"224x224 images in {ROOM} GiB", measure(160, 300, 2000, (3, 224, 224), chunk=160, rounds=2, epochs=1)[0])
    del taken
    out = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    (out / "scale.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
