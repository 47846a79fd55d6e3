"""The job that every side of the CPU benchmark does: its data, its model, its settings and its last line.

Needs numpy and torch only, so that the rivals' environments can import it.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS = 6
CLASSES = 10
BATCH = 64
LR = 1e-4
EVALUATION_BATCH = 256
ENVIRONMENT = "FEDEKD_BENCH_SPEC"  # how Flower's actors, which take no arguments, get theirs


@dataclass(frozen=True)
class Spec:
    """What is to be done. ``plain`` is eager PyTorch as most people write it, ``tuned`` what our engine does."""

    data: str
    rounds: int = 2
    epochs: int = 2
    setting: str = "tuned"
    precision: str = "fp32"
    repeats: int = 5

    @property
    def tuned(self) -> bool:
        return self.setting == "tuned"

    def dump(self) -> str:
        return json.dumps(asdict(self))


def parse(argv: list[str] | None = None, **choices: tuple[str, ...]) -> tuple[argparse.Namespace, Spec]:
    """A script's arguments: its own choices by position, then the spec's fields as flags."""
    parser = argparse.ArgumentParser()
    for name, values in choices.items():
        parser.add_argument(name, choices=values)
    parser.add_argument("--data", required=True, help="the .npz file that benchmarks/cpu.py makes")
    parser.add_argument("--rounds", type=int, default=Spec.rounds)
    parser.add_argument("--epochs", type=int, default=Spec.epochs)
    parser.add_argument("--setting", choices=("plain", "tuned"), default=Spec.setting)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default=Spec.precision)
    parser.add_argument("--repeats", type=int, default=Spec.repeats, help="timed epochs in throughput mode")
    args = parser.parse_args(argv)
    fields = {name: getattr(args, name) for name in Spec.__dataclass_fields__}
    fields["data"] = str(Path(args.data).resolve())
    return args, Spec(**fields)


# --- data ------------------------------------------------------------------------------------------------


def load(path: str) -> dict[str, np.ndarray]:
    """train_x, train_y, test_x, test_y: uint8 [client, sample, 28, 28] and int64 [client, sample]."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def samples(arrays: dict[str, np.ndarray], split: str, client: int) -> tuple[Tensor, Tensor]:
    """One client's images as the model takes them, float32 in -1..1, and their labels."""
    x = torch.from_numpy(arrays[f"{split}_x"][client]).unsqueeze(1).float().div_(127.5).sub_(1)
    return x, torch.from_numpy(arrays[f"{split}_y"][client])


# --- model -----------------------------------------------------------------------------------------------


def make_model(spec: Spec, seed: int = 0) -> nn.Module:
    """The private CNN: 64-128-128 convolutions with ReLU and pooling, 256 hidden units."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = 1
    for width in (64, 128, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    head = [nn.Flatten(), nn.Linear(channels * 3 * 3, 256), nn.ReLU(), nn.Linear(256, CLASSES)]
    model = nn.Sequential(*layers, *head)
    return model.to(memory_format=torch.channels_last) if spec.tuned else model


def make_optimizer(weights, spec: Spec, lr: float = LR) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=lr, fused=True) if spec.tuned else torch.optim.Adam(weights, lr=lr)


def train(model: nn.Module, x: Tensor, y: Tensor, spec: Spec) -> None:
    """Epochs of minibatch Adam from a fresh optimizer."""
    optimizer = make_optimizer(model.parameters(), spec)
    model.train()
    for _ in range(spec.epochs):
        for images, labels in _batches(x, y, spec):
            with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _batches(x: Tensor, y: Tensor, spec: Spec):
    if not spec.tuned:
        data = torch.utils.data.TensorDataset(x, y)
        yield from torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
        return
    for rows in torch.randperm(len(x)).split(BATCH):
        yield x[rows], y[rows]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, spec: Spec) -> float:
    model.eval()
    hits = 0
    for images, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            hits += int((model(images).argmax(1) == labels).sum())
    return hits / len(x)


# --- the last line ---------------------------------------------------------------------------------------


def parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def report_job(who: str, spec: Spec, accuracies: list[float], model: nn.Module, trained: int, **more) -> None:
    """What was done, so that the harness can see that all sides did the same."""
    _report(who, spec, accuracies=accuracies, parameters=parameters(model), trained=trained, **more)


def report_throughput(who: str, spec: Spec, rates: list[float]) -> None:
    _report(who, spec, samples_per_second=sorted(rates)[len(rates) // 2], rates=rates)


def _report(who: str, spec: Spec, **more) -> None:
    about = {"python": platform.python_version(), "torch": torch.__version__}
    line = {"who": who, "setting": spec.setting, "precision": spec.precision, "threads": torch.get_num_threads()}
    print(json.dumps({**line, **about, **more}), flush=True)
