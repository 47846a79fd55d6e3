"""Whole training steps of stacked networks for gpu_kernels.py: samples/s, and where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_layers import BATCH, DEVICE, elapsed
from torch import Tensor
from torch.nn import functional

from fedekd.engines import fused_conv


def make_step(m: int, precision: str, role: str = "private") -> Callable[[], Tensor]:
    from torch.func import functional_call, vmap

    from fedekd import models

    torch.manual_seed(0)
    template = fused_conv.lower(getattr(models, role)((1, 28, 28), 10).to(DEVICE), precision)
    weights = {n: p.detach().expand(m, *p.shape).clone().requires_grad_() for n, p in template.named_parameters()}
    optimizer = torch.optim.Adam(list(weights.values()), lr=1e-3, fused=True, capturable=True)
    x, y = torch.randn(m, BATCH, 1, 28, 28, device=DEVICE), torch.randint(10, (m, BATCH), device=DEVICE)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(template, weights, (x,)).float(), y)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
            total = vmap(loss)(weights, x, y).sum()
        total.backward()
        optimizer.step()
        return total.detach()

    return step


def rate(step: Callable[[], Any], m: int, repeats: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return m * BATCH * repeats / (time.perf_counter() - begin)


def steps(budget: float) -> Iterator[dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for role, m, precision in [
        *(("private", m, p) for p in ("bf16", "tf32") for m in (60, 240, 6)),
        *(("proxy", 60, p) for p in ("bf16", "tf32")),
    ]:
        if elapsed() > budget:
            return
        row: dict[str, Any] = {"role": role, "models": m, "precision": precision}
        try:
            step = make_step(m, precision, role)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                begin = float(step())
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            row["eager"] = rate(step, m, 20)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total = step()
            row["graph"] = rate(graph.replay, m, 30)
            row["loss"] = [begin / m, float(total) / m]  # falls: the step does train
            row["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
            del graph, step
        except Exception as error:
            row["failure"] = f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        yield row


def profile(m: int, precision: str) -> list[tuple[str, float, int]]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    step = make_step(m, precision)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    events = [(e.key[:70], e.self_device_time_total / 5000, e.count // 5) for e in found.key_averages()]
    return sorted(events, key=lambda e: -e[1])[:13]
