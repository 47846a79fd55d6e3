"""The same total data over 6, 60 and 600 clients: time and memory of the stacked engine.

    python benchmarks/scale.py

Also shows that a stack which does not fit is cut into pieces: the last line allows the process little memory.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from gpu import BATCH, federation

from fedekd import methods, models
from fedekd.engines.job import Job, Training
from fedekd.engines.stacked import Stacked

TOTAL = 600 * BATCH * 4


def measure(clients: int, piece: int = 96) -> dict[str, float]:
    training = Training(rounds=3, epochs=2, batch_size=BATCH, lr=1e-4, device="cuda", precision="tf32")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    job = Job(federation(clients, TOTAL // clients), methods.get("fedekd"), 0, training)
    engine = Stacked([job], piece=piece)
    held = torch.cuda.memory_allocated()
    times = []
    for _ in range(training.rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.round()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {
        "clients": clients,
        "seconds_per_round": min(times[1:]),
        "held_gib": held / 2**30,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "piece": engine.limit,
    }


def main() -> None:
    shape = (1, 28, 28)
    weights = sum(w.numel() for make in (models.private, models.proxy) for w in make(shape, 10).parameters())
    print(f"{TOTAL:,} samples in all; {weights * 4 / 2**20:.1f} MiB of weights per client")
    rows = []
    for clients in (6, 60, 600):
        rows.append(measure(clients))
        print(rows[-1], flush=True)
    free = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (rows[1]["held_gib"] + 3.0) * 2**30 / free))
    rows.append({**measure(60, piece=240), "limited": 1.0})
    print("with little memory:", rows[-1])
    out = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    (out / "scale.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
