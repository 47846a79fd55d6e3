"""The bare PyTorch loop, written by hand: what a framework is to be held against.

python benchmarks/bare.py throughput --data FILE    one model, epoch after epoch: samples/s
python benchmarks/bare.py job --data FILE           FedAvg over six clients: their accuracies
"""

from __future__ import annotations

import time

import job
import torch


def throughput(spec: job.Spec) -> None:
    x, y = job.samples(job.load(spec.data), "train", 0)
    model = job.make_model(spec)
    rates = []
    for _ in range(1 + spec.repeats):
        start = time.perf_counter()
        job.train(model, x, y, spec)
        rates.append(spec.epochs * len(x) / (time.perf_counter() - start))
    job.report_throughput("bare", spec, rates[1:])


def fedavg(spec: job.Spec) -> None:
    arrays = job.load(spec.data)
    clients = [job.samples(arrays, "train", k) for k in range(job.CLIENTS)]
    model = job.make_model(spec)
    shared = {name: w.clone() for name, w in model.state_dict().items()}
    for _ in range(spec.rounds):
        mean = {name: torch.zeros_like(w) for name, w in shared.items()}
        for x, y in clients:
            model.load_state_dict(shared)
            job.train(model, x, y, spec)
            for name, w in model.state_dict().items():
                mean[name] += w / len(clients)
        shared = mean
    model.load_state_dict(shared)
    accuracies = [job.accuracy(model, *job.samples(arrays, "test", k), spec) for k in range(job.CLIENTS)]
    trained = spec.rounds * spec.epochs * sum(len(x) for x, _ in clients)
    job.report_job("bare", spec, accuracies, model, trained)


if __name__ == "__main__":
    args, spec = job.parse(mode=("throughput", "job"))
    throughput(spec) if args.mode == "throughput" else fedavg(spec)
