"""Methods in the serial engine, for the tests: train, look at the weights, and a federation of one number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from byhand import same as same
from fedekd.data import Dataset, Federation, Split
from fedekd.engines.serial import Serial
from tiny import job


def engine_of(federation, method, **options) -> Serial:
    return Serial(job(federation, method, **options))


def trained(federation, method, **options) -> Serial:
    engine = engine_of(federation, method, **options)
    for _ in range(engine.job.training.rounds):
        engine.round()
    return engine


def states(engine: Serial, role: str = "private") -> list[dict[str, Tensor]]:
    """A copy of each client's weights and buffers."""
    return [{n: t.clone() for n, t in client.models[role].state_dict().items()} for client in engine.clients]


def answers(engine: Serial, split: str = "test") -> list[Tensor]:
    return [client._answers(split)[0] for client in engine.clients]


def answer_alike(a: Serial, b: Serial) -> bool:
    return all(torch.equal(x, y) for x, y in zip(answers(a), answers(b), strict=True))


def traffic(engine: Serial) -> tuple[int, int]:
    return engine.door.bytes_up, engine.door.bytes_down


def go_on(federation, method, **options) -> bool:
    """Whether a run that was saved after its first round ends with the bits of one that was not."""
    whole, first = (engine_of(federation, method, rounds=3, **options) for _ in range(2))
    for _ in range(3):
        whole.round()
    first.round()
    second = engine_of(federation, method, rounds=3, **options)
    second.restore(first.state())
    for _ in range(2):
        second.round()
    alike = all(same(states(whole, role), states(second, role)) for role in method.roles)
    return alike and answer_alike(whole, second) and traffic(whole) == traffic(second)


class Number(nn.Module):
    """w x: with the rows of ``halves`` its loss is w^2 / 2."""

    def __init__(self, *_) -> None:
        super().__init__()
        self.w = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x)


def halves(clients: int = 1) -> Federation:
    """Rows on which the mean squared error of w x is w^2 / 2."""
    x, y = np.full((2 * clients, 1), 0.5**0.5, np.float32), np.zeros(2 * clients, np.float32)
    splits = tuple(Split(r, r, r) for r in np.arange(2 * clients).reshape(clients, 2))
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    names = tuple(str(k) for k in range(clients))
    how = {"kind": "sites", "alpha": None}
    return Federation(Dataset("halves", "regression", x, y, 1, scale=None), splits, names, how, zero, one, 0.0, 1.0)


def one_step(method, lr=0.1, **start: float) -> Serial:
    """One round of one step of SGD on w^2 / 2, each role from its own number; what came before is the global's."""
    engine = engine_of(halves(), method, private=Number, rounds=1, epochs=1, batch_size=2, lr=lr, optimizer="sgd")
    client = engine.clients[0]
    for role, value in start.items():
        torch.nn.init.constant_(client.models[role].w.weight, value)
    for name in client.received:
        client.received[name] = {"w.weight": client.models[name].w.weight.detach().clone()}
    engine.round()
    return engine


def number(engine: Serial, role: str) -> float:
    return engine.clients[0].models[role].w.weight.item()
