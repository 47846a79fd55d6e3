"""FedAvg over very many clients of whom few take part: the job that every side of many_peers.py does.

Needs numpy only: the environment of FedJAX has no torch.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable

import numpy as np
import synthetic

CLASSES, SIDE, BATCH, ROWS, LR = 10, 28, 64, 128, 1e-3
IMAGES, HELD_OUT = 20_000, 512
WIDTHS, HIDDEN = (64, 128, 128), 256


class ManyData:
    """Images that all clients draw their rows from, as uint8 [n, 28, 28], and images that nobody trains on."""

    def __init__(self, clients: int) -> None:
        rng = np.random.default_rng(synthetic.SEED)
        x, y = synthetic.draw(rng, synthetic.make_patterns(rng), (IMAGES + HELD_OUT,))
        self.x, self.y = x[:IMAGES], y[:IMAGES]
        self.test_x, self.test_y = x[IMAGES:], y[IMAGES:]
        self.rows = rng.integers(0, IMAGES, (clients, ROWS))


def scaled(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 127.5 - 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--present", type=int, required=True, help="how many of them take part in a round")
    parser.add_argument("--rounds", type=int, required=True, help="the first is not counted")
    parser.add_argument("--setting", default="", help="one of this side's ways to do the job")
    return parser.parse_args()


class Rounds:
    """Seconds and CPU seconds (of all threads) of each round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.begin()

    def begin(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.wall.append(time.perf_counter() - self.began[0])
        self.cpu.append(time.process_time() - self.began[1])
        self.begin()


def report(rounds: Rounds, parameters: int, trained: int, loss: float, **versions: str) -> None:
    """``loss``: the global model's mean cross-entropy on the held-out images, so that a side that trains less shows."""
    found = {"seconds": rounds.wall, "cpu_seconds": rounds.cpu, "parameters": parameters, "trained": trained}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    about = {"python": platform.python_version(), **versions}
    print(json.dumps({**found, "loss": loss, "peak_mb": peak, **about}), flush=True)


def timed(rounds: int, perform: Callable[[], None]) -> Rounds:
    found = Rounds()
    for _ in range(rounds):
        found.begin()
        perform()
        found.end()
    return found
