"""Federations of 100 to 10,000 clients, of whom few take part in a round: what a round takes, and what is held where.

    python benchmarks/many.py [--device cpu] [--quick] [--only TEXT] [--rows N]

A round should take as long as those that take part, whoever else there is: 100 of 100, of 1,000 and of 10,000 clients;
then 1,000 of 10,000. "main memory" keeps all rows off the device, as where they do not fit; those that take part are
brought together, the next ones meanwhile. "at once" they are brought when a round begins and put back before it ends;
"when read", every read fetches and every write puts back.
``difference`` is the largest between the weights of 100 members after all rounds and those of the first way measured in
this process, beside ``moved``, the largest change since the start. Every row is written as soon as it is known (to
$OUT/many.json, or benchmarks/results), and what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from gpu import BATCH, federation

from fedekd import methods, models
from fedekd.engines import member_rows
from fedekd.engines.job import Job, Training
from fedekd.engines.stacked import Stacked

ROUNDS, GIB = 6, 2**30
CASES = ((100, 100), (1_000, 100), (10_000, 100), (10_000, 1_000))
ROOM = member_rows.ROOM
WAYS = ("the device if it fits", "main memory", "main memory, at once", "main memory, when read")
ends: dict[tuple[str, int, int], torch.Tensor] = {}


def weights_of(engine: Stacked, members: list[int]) -> torch.Tensor:
    at = torch.tensor(members)
    tree = engine.stacks[0].weights["private"]
    return torch.cat([w[at.to(engine.device)].flatten(1).float().cpu() for w in tree.values()], dim=1)


def measured(
    name: str, clients: int, present: int, device: str, model: str | None, rows: int, where: str
) -> dict[str, Any]:
    gpu = device == "cuda"
    member_rows.ROOM = 0.0 if where.startswith("main memory") else ROOM
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    training = Training(
        ROUNDS, 1, BATCH, 1e-4, device=device, precision="bf16" if gpu else "fp32", participation=present / clients
    )
    began = time.perf_counter()
    data = federation(clients, rows)
    job = Job(data, methods.get(name), 0, training, models.factory("private", model), models.factory("proxy", model))
    engine = Stacked([job])
    (stack,) = engine.stacks
    stack.brings, at_work = stack.brings and not where.endswith("when read"), stack.at_work
    if where.endswith("at once"):
        stack.at_work = lambda here, then, *roles: at_work(here, [], *roles)
    made = time.perf_counter() - began
    seen = engine._present(0)[:100]
    start, times, whole = weights_of(engine, seen), [], time.perf_counter()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        engine.round()
        if where.endswith("at once"):
            engine.state()  # waits for whatever still moves
        times.append(time.perf_counter() - began)
    engine.state()
    whole = time.perf_counter() - whole
    end = weights_of(engine, seen)
    first = ends.setdefault((name, clients, present), end)
    began = time.perf_counter()
    engine.evaluate()
    tensor = next(iter(stack.weights["private"].values()))
    return {
        "seconds_to_begin": made,
        "seconds_by_round": times,
        "seconds_a_round": statistics.median(times[1:]),
        "seconds_of_all_rounds": whole,
        "brought": stack.brings,
        "difference": float((end - first).abs().max()),
        "moved": float((end - start).abs().max()),
        "seconds_to_measure_all": time.perf_counter() - began,
        "device_gib": torch.cuda.max_memory_allocated() / GIB if gpu else 0.0,
        "process_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "rows": tensor.used if isinstance(tensor, member_rows.MemberRows) else len(tensor),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="FedeKD alone")
    parser.add_argument("--only", default="", help="cases in whose names this is found")
    parser.add_argument("--rows", type=int, default=2 * BATCH, help="of each client; two batches if left out")
    parser.add_argument("--model", help="a name of `fedekd models` for both models; the default pair if left out")
    options = parser.parse_args()
    path = Path(os.environ.get("OUT", Path(__file__).parent / "results")) / "many.json"
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for method in ("fedekd",) if options.quick else ("fedekd", "fedavg", "scaffold"):
        for clients, present in CASES:
            for where in WAYS if options.device == "cuda" and present < clients else WAYS[:1]:
                name = f"{options.device} {method}, {present:,} of {clients:,} clients, rows in {where}"
                name += f", {options.rows} rows each" if options.rows != 2 * BATCH else ""
                if options.only not in name:
                    continue
                if name not in table:
                    try:
                        given = (method, clients, present, options.device, options.model, options.rows, where)
                        table[name] = measured(*given)
                    except Exception as error:
                        table[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
                    path.write_text(json.dumps(table, indent=1))
                shown = {k: float(f"{v:.4g}") for k, v in table[name].items() if isinstance(v, (int, float))}
                print(name, shown or table[name], flush=True)


if __name__ == "__main__":
    main()
