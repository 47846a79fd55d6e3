"""Check and tune the stacked convolution kernels (src/fedekd/engines/fused_conv.py) on a GPU.

    python3 benchmarks/gpu_kernels.py [--seconds 140] [--only check,tune,step,profile]

1. check: every kernel against float64, all layer shapes and precisions, outputs poisoned first, results repeated.
2. tune: time per kernel and layer over a list of tiles, beside grouped conv2d; the winners, for ``fused_conv.TILES``.
3. step: samples/s of the private CNN, forward + backward + Adam, eager and as a CUDA graph.
4. profile: where one step's GPU time goes.

A section that fails is reported and the next one runs. All numbers go to $OUT/fused_conv.json as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_layers import BATCH, LAYERS, draw, elapsed, launch, prepare
from gpu_steps import profile, steps
from torch import Tensor
from torch.nn import functional

from fedekd.engines import fused_conv

PROGRAMS = fused_conv.PROGRAMS
STACKS = (60, 240)  # models; the first stack is tuned, the second timed with the winners
TUNED = [name for name in LAYERS if "28." in name]
LIMITS = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
# rows, columns, depth (of bf16; tf32 takes half), warps, stages
TILES = {
    "forward": [
        (128, 128, 64, 4, 3), (128, 128, 64, 4, 2), (128, 128, 32, 4, 4), (256, 128, 64, 8, 3),
        (256, 128, 64, 8, 4), (128, 64, 64, 4, 3), (256, 64, 64, 8, 2), (256, 64, 64, 4, 2),
    ],
    "dgrad": [
        (128, 128, 64, 4, 3), (128, 128, 64, 4, 2), (256, 128, 64, 8, 3), (128, 64, 64, 4, 3),
        (128, 64, 64, 4, 4), (256, 64, 64, 8, 2), (256, 64, 64, 4, 2), (128, 64, 128, 4, 2),
    ],
    "wgrad": [
        (128, 64, 64, 8, 2), (128, 64, 64, 8, 3), (128, 64, 32, 8, 4), (64, 64, 64, 4, 2),
        (64, 64, 64, 4, 3), (128, 32, 64, 4, 3), (128, 64, 128, 8, 2), (64, 64, 32, 4, 4),
    ],
    "first": [
        (64, 64, 0, 4, 1), (128, 64, 0, 4, 1), (256, 64, 0, 4, 1), (256, 64, 0, 8, 1), (128, 32, 0, 4, 1),
        (256, 32, 0, 4, 1),
    ],
    "first_wgrad": [
        (64, 0, 32, 4, 2), (64, 0, 32, 4, 3), (64, 0, 16, 4, 2), (32, 0, 32, 4, 2), (64, 0, 16, 4, 3),
        (64, 0, 32, 8, 2), (64, 0, 64, 8, 2), (32, 0, 64, 4, 2),
    ],
}  # fmt: skip


# --- 1. check ------------------------------------------------------------------------------------------------


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach()).norm() / b.detach().norm())


def check(job: tuple[str, str, int, int, int]) -> dict[str, Any]:
    """Relative errors of one layer's kernels; gradients are compared along the code the forward kernel chose."""
    name, precision, m, batch, last = job
    result: dict[str, Any] = {"layer": name, "precision": precision, "models": m}
    try:
        torch.manual_seed(hash(job[2:]) % 2**31)
        c, n, size = LAYERS[name]
        data = prepare(draw(name, m, batch, precision), precision)
        first_y, first_code = data["y"].clone(), data["code"].clone()
        launch("forward", data, precision, fused_conv.tile("forward", c, n, precision))
        same = torch.equal(first_y, data["y"]) and torch.equal(first_code, data["code"])
        grads = []
        for _ in range(2):
            launch("dgrad", data, precision, fused_conv.tile("dgrad", c, n, precision))
            if c <= fused_conv.FEW:
                tile = fused_conv.tile("first_wgrad", c, n, precision)
                dw, db = fused_conv.first_gradient(data["x"], data["dy"], data["code"], precision, tile)
            else:
                launch("wgrad", data, precision, fused_conv.tile("wgrad", c, n, precision))
                dw, db = data["dw"], data["sums"].sum(1)
            grads.append([data["dx"].clone(), dw.clone(), db.clone()])
        result["repeats"] = same and all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
        models = range(m)[-last:]
        errors: dict[str, list[float]] = {key: [] for key in ("y", "code", "dx", "dw", "db")}
        for i in models:
            x = data["x"][i].permute(0, 3, 1, 2).double().requires_grad_()
            w, b = data["w"][i].double().requires_grad_(), data["b"][i].double().requires_grad_()
            maps = functional.conv2d(x, w, b, padding=1)
            high = size // 2 * 2
            windows = maps[..., :high, :high].unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
            windows = windows.permute(0, 2, 4, 1, 3, 5).flatten(-2)  # batch, row, column, channel, position
            code = data["code"][i].long()
            best = windows.amax(-1).relu()
            chosen = torch.where(code == 4, 0.0, windows.gather(-1, code.clamp(max=3)[..., None])[..., 0])
            errors["y"].append(distance(data["y"][i], best))
            errors["code"].append(distance(chosen, best) if bool((code <= 4).all()) else float("nan"))
            routed = torch.zeros_like(windows).scatter(
                -1, code.clamp(max=3)[..., None], data["dy"][i].double()[..., None]
            )
            routed = torch.where((code == 4)[..., None], 0.0, routed)
            expected = torch.autograd.grad(windows, (x, w, b), routed)
            errors["dx"].append(distance(grads[0][0][i], expected[0].permute(0, 2, 3, 1)))
            errors["dw"].append(distance(grads[0][1][i], expected[1]))
            errors["db"].append(distance(grads[0][2][i], expected[2]))
        worst = {key: max(values, key=lambda v: (v != v, v)) for key, values in errors.items()}
        result |= {"errors": worst, "ok": result["repeats"] and all(v < LIMITS[precision] for v in worst.values())}
    except Exception as error:
        result |= {"ok": False, "failure": f"{type(error).__name__}: {error}"[:300]}
    torch.cuda.empty_cache()
    return result


def checks() -> list[tuple[str, str, int, int, int]]:
    jobs = []
    for precision in ("bf16", "tf32", "fp32"):
        for name, (_, _, size) in LAYERS.items():
            jobs.append((name, precision, 3, 5 if size < 50 else 2, 3))
    # More than 2^31 values in one stack: only the last model is compared.
    jobs.insert(0, ("proxy28.2", "bf16", 5400, 64, 1))
    return jobs


# --- 2. tune -------------------------------------------------------------------------------------------------


def tiles(kernel: str, name: str, precision: str) -> list[tuple[int, ...]]:
    """The tiles to try, cut to the layer, without repetition."""
    c, n, _ = LAYERS[name]
    rows_limit = n if kernel in ("wgrad", "first_wgrad") else 2**31
    columns_limit = {"forward": n, "first": n, "first_wgrad": 2**31}.get(kernel, c)
    depth_limit = {"forward": c, "dgrad": n}.get(kernel, 2**31)
    found: dict[tuple[int, ...], None] = {}
    for rows, columns, depth, warps, stages in TILES[kernel]:
        depth = depth // 2 if precision == "tf32" and kernel in ("forward", "dgrad", "wgrad") else depth
        cut = (min(rows, power(rows_limit)), min(columns, power(columns_limit)), min(depth, power(depth_limit)))
        found[(*cut, warps, stages)] = None
    return list(found)


def power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def layer_kernels(name: str) -> list[str]:
    return ["first", "first_wgrad"] if LAYERS[name][0] <= fused_conv.FEW else ["forward", "dgrad", "wgrad"]


def compile_one(job: tuple[str, str, str, tuple[int, ...]]) -> str:
    """Compile in a process of its own; the result lies in Triton's cache on the disk for the timing process."""
    kernel, name, precision, tile = job
    try:
        data = prepare(draw(name, 2, BATCH, precision), precision)
        launch(kernel, data, precision, tile)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{kernel} {name} {precision} {tile}: {type(error).__name__}: {str(error)[:120]}"
    return ""


def milliseconds(run: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(run, warmup=4, rep=16, return_mode="median"))


def grouped(data: dict[str, Tensor], precision: str) -> tuple[float, float]:
    """Forward and backward of the same layer as PyTorch does it: a grouped convolution, ReLU, pooling."""
    x, w, b = data["x"], data["w"], data["b"]
    m, c = x.shape[0], x.shape[4]
    kind = fused_conv.PRECISIONS[precision][0]
    planes = (
        x.permute(1, 0, 4, 2, 3)
        .flatten(1, 2)
        .to(kind)
        .contiguous(memory_format=torch.channels_last if precision == "bf16" else torch.contiguous_format)
    )
    planes.requires_grad_(c > fused_conv.FEW)
    weights = w.flatten(0, 1).to(kind).requires_grad_()
    bias = b.flatten().to(kind).requires_grad_()
    leaves = [t for t in (planes, weights, bias) if t.requires_grad]

    def forward() -> Tensor:
        return functional.max_pool2d(functional.conv2d(planes, weights, bias, padding=1, groups=m).relu(), 2)

    y = forward()
    dy = torch.randn_like(y)
    with torch.no_grad():
        ahead = milliseconds(forward)
    return ahead, milliseconds(lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True))


def fastest(
    kernel: str, candidates: list[tuple[int, ...]], data: dict[str, Tensor], precision: str, failed: list[str]
) -> tuple[dict[tuple[int, ...], float], dict[int, float]]:
    """Milliseconds by tile and, where sums are split, by the programs wanted per multiprocessor."""
    times: dict[tuple[int, ...], float] = {}
    splits: dict[int, float] = {}
    for tile in candidates:
        for programs in (2, 4, 8) if "wgrad" in kernel else (PROGRAMS,):
            fused_conv.PROGRAMS = programs
            try:
                ms = milliseconds(lambda t=tile: launch(kernel, data, precision, t))
            except Exception as error:  # out of shared memory or registers
                failed.append(f"{kernel} {tile}: {str(error)[:80]}")
                break
            times[tile], splits[programs] = min(times.get(tile, ms), ms), min(splits.get(programs, ms), ms)
    fused_conv.PROGRAMS = PROGRAMS
    return times, splits


def tune(budget: float) -> Iterator[dict[str, Any]]:
    """Per layer, precision and stack: the best tile and time of each kernel."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    best: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for m, precision, name in ((m, p, n) for m in STACKS for p in ("bf16", "tf32") for n in TUNED):
        if elapsed() > budget:
            return
        c, n, size = LAYERS[name]
        data = prepare(draw(name, m, BATCH, precision), precision)
        row: dict[str, Any] = {"layer": name, "precision": precision, "models": m, "kernels": {}, "failed": []}
        for kernel in layer_kernels(name):
            key = (kernel, name, precision)
            candidates = tiles(*key) if m == STACKS[0] else [best[key]] if key in best else []
            times, splits = fastest(kernel, candidates, data, precision, row["failed"])
            if not times:
                continue
            best[key] = won = min(times, key=lambda t: times[t])
            tera = 2 * 9 * c * n * size * size * BATCH * m / times[won] / 1e9
            row["kernels"][kernel] = {"ms": times[won], "tflops": tera, "tile": won}
            row["kernels"][kernel]["all"] = {str(t): round(v, 4) for t, v in times.items()}
            row["split"] = splits
        try:
            order = (0, 1, 2, 3, 4) if c <= fused_conv.FEW else (0, 3, 4, 1, 2)
            row["pack_ms"] = milliseconds(lambda d=data, p=precision, o=order: fused_conv.packed(d["w"], p, *o))
            row["unpool_ms"] = milliseconds(lambda d=data, p=precision: launch("unpool", d, p, ()))
            if m == STACKS[0]:
                row["grouped_ms"] = grouped(data, precision)
        except Exception as error:
            row["failed"].append(str(error)[:120])
        yield row
        del data
        torch.cuda.empty_cache()


def winners(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int, str], tuple[int, ...]]:
    found = {}
    for row in rows:
        c, n, _ = LAYERS[row["layer"]]
        for kernel, entry in row["kernels"].items():
            # A first layer's tile has no depth or columns of its own; the kernels set those.
            tile = tuple(v or 16 for v in entry["tile"])
            found["forward" if kernel == "first" else kernel, c, n, row["precision"]] = tile
    return found


# --- the report ----------------------------------------------------------------------------------------------


def section(name: str, report: dict[str, Any], run: Callable[[], Any]) -> None:
    begin = elapsed()
    try:
        report[name] = run()
    except Exception:
        report.setdefault("failures", {})[name] = traceback.format_exc()[-1500:]
        print(f"section {name} failed:\n{traceback.format_exc()[-1500:]}", flush=True)
    print(f"# {name}: {elapsed() - begin:.0f} s, in all {elapsed():.0f} s", flush=True)


def collected(results: Any, deadline: float) -> list[Any]:
    """What the workers gave before the deadline; a kernel that hangs must not take the rest with it."""
    found = []
    try:
        while True:
            found.append(results.next(timeout=max(1.0, deadline - elapsed())))
    except (StopIteration, multiprocessing.TimeoutError):
        return found


def prepared(report: dict[str, Any], only: set[str], deadline: float) -> None:
    """Checks and compilations, side by side, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    jobs = [
        (kernel, name, precision, tile)
        for precision in ("bf16", "tf32")
        for name in TUNED
        for kernel in layer_kernels(name)
        for tile in tiles(kernel, name, precision)
    ]
    workers = max(1, (os.cpu_count() or 2) // 2)
    with context.Pool(workers) as checkers, context.Pool(workers) as compilers:
        checked = checkers.imap_unordered(check, checks() if "check" in only else [])
        compiled = compilers.imap_unordered(compile_one, jobs if "tune" in only else [])
        report["check"] = collected(checked, deadline)
        print(f"# {len(report['check'])} of {len(checks())} checked after {elapsed():.0f} s", flush=True)
        lines = collected(compiled, deadline)
        report["compile"] = [line for line in lines if line]
        print(f"# {len(lines)} of {len(jobs)} tiles compiled after {elapsed():.0f} s", flush=True)


def table(report: dict[str, Any]) -> None:
    """At most some 9,000 characters: what a reply carries."""
    print("\n== check: relative errors against float64, the worst of all layers and models ==")
    rows = report.get("check") or []
    for precision, limit in LIMITS.items():
        here = [row for row in rows if row["precision"] == precision]
        worst = []
        for key in ("y", "code", "dx", "dw", "db"):
            errors = [(row["errors"][key], row["layer"]) for row in here if "errors" in row]
            worst += ["{} {:.1e} {}".format(key, *max(errors, key=lambda e: (e[0] != e[0], e[0])))] if errors else []
        print(
            f"{precision}: {sum(row['ok'] for row in here)} of {len(here)} ok (limit {limit:.0e}); {', '.join(worst)}"
        )
    for row in [row for row in rows if not row["ok"]][:12]:
        errors = " ".join(f"{k} {v:.1e}" for k, v in row.get("errors", {}).items())
        print(
            f"FAIL {row['precision']} {row['layer']} m={row['models']} {errors} {row.get('failure', '')[:160]}"
            f"{'' if row.get('repeats', True) else ' DOES NOT REPEAT'}"
        )
    for line in (report.get("compile") or [])[:8]:
        print("not compiled:", line[:160])
    print(
        "\n== tune: ms (nominal TFLOP/s) tile; split: by PROGRAMS; grouped: conv2d + relu + max_pool2d, fwd and bwd =="
    )
    for row in report.get("tune") or []:
        parts = [f"{k} {e['ms']:.3f} ({e['tflops']:.0f})" for k, e in row["kernels"].items()]
        if row["models"] == STACKS[0]:
            where = [" " + "/".join(map(str, e["tile"])) for e in row["kernels"].values()]
            parts = [part + tile for part, tile in zip(parts, where, strict=True)]
        parts += [f"{k[:-3]} {row[k]:.3f}" for k in ("unpool_ms", "pack_ms") if k in row]
        parts += ["grouped {:.3f} {:.3f}".format(*row["grouped_ms"])] if "grouped_ms" in row else []
        parts += ["split " + " ".join(f"{k}:{v:.3f}" for k, v in row["split"].items())] if "split" in row else []
        print(f"{row['models']} {row['precision']} {row['layer']}: {'; '.join(parts)}")
        for line in row.get("failed", [])[:2]:
            print("   failed:", line[:120])
    if report.get("winners"):
        print("\n== winners, for fused_conv.TILES ==")
        for key, tile in report["winners"].items():
            print(f"    {key}: {tile},")
    print("\n== step: samples/s (before, 60 private models: im2col + bmm 569,000 bf16, 343,000 tf32) ==")
    for row in report.get("step") or []:
        rates = " ".join(f"{k} {row[k]:,.0f}" for k in ("eager", "graph") if k in row)
        loss = " -> ".join(f"{v:.3f}" for v in row.get("loss", []))
        print(f"{row['role']} m={row['models']} {row['precision']}: {rates}; loss {loss} {row.get('failure', '')}")
    for name in ("profile_bf16", "profile_tf32"):
        print(f"\n== {name}: ms per step of 60 models, launches ==")
        for key, ms, count in report.get(name) or []:
            print(f"{ms:7.3f} {count:3} {key[:56]}")
    for name, text in report.get("failures", {}).items():
        print(f"\n== section {name} FAILED ==\n{text[-500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=140, help="start nothing new after that time")
    parser.add_argument("--only", default="check,tune,step,profile", help="sections to run")
    arguments = parser.parse_args()
    only = set(arguments.only.split(","))
    report: dict[str, Any] = {}
    if not fused_conv.available("cuda"):
        sys.exit("no GPU with Triton here")
    properties = torch.cuda.get_device_properties(0)
    report["machine"] = f"{properties.name}, {properties.multi_processor_count} SMs, torch {torch.__version__}"
    print("#", report["machine"], flush=True)
    if only & {"check", "tune"}:
        section("prepare", report, lambda: prepared(report, only, arguments.seconds - 50))
    if "tune" in only:
        report["tune"] = []
        section("tuning", report, lambda: report["tune"].extend(tune(arguments.seconds - 35)))
        found = winners(report["tune"])
        report["winners"] = {str(k): v for k, v in found.items()}
        fused_conv.TILES.update(found)
    if "step" in only:
        report["step"] = []
        section("stepping", report, lambda: report["step"].extend(steps(arguments.seconds - 10)))
    if "profile" in only:
        for precision in ("bf16", "tf32"):
            if elapsed() < arguments.seconds:
                section(f"profile_{precision}", report, lambda p=precision: profile(60, p))
    report["seconds"] = elapsed()
    if out := os.environ.get("OUT"):
        (Path(out) / "fused_conv.json").write_text(json.dumps(report, indent=1, default=str))
    table(report)
    print(f"\n# {elapsed():.0f} s in all")


if __name__ == "__main__":
    main()
