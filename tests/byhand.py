"""Problems small enough for a closed form: models of one linear layer, quadratic losses, batches made by hand."""

from __future__ import annotations

import io
import itertools

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from fedekd.data import Dataset, Federation, Split
from fedekd.engines.batch import make_batch
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.tasks import make_task


class Line(nn.Module):
    """y = <w, x>: with squared error, each client's loss is a quadratic in w."""

    def __init__(self, start) -> None:
        super().__init__()
        self.w = nn.Linear(len(start), 1, bias=False)
        with torch.no_grad():
            self.w.weight.copy_(torch.tensor([start]))

    def forward(self, x):
        return self.w(x)


def lines(*start: float):
    """A factory of lines that begin there."""
    return lambda shape, outputs: Line(start)


def clients_of(*rows) -> Federation:
    """A regression whose clients have these (inputs, targets), in each of their splits alike."""
    x, y = (np.concatenate([np.asarray(one[i], np.float32) for one in rows]) for i in (0, 1))
    ends = np.cumsum([0, *(len(one[1]) for one in rows)])
    splits = tuple(Split(*[np.arange(a, b)] * 3) for a, b in itertools.pairwise(ends))
    names = tuple(str(k) for k in range(len(rows)))
    one, zero = np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.float32)
    dataset = Dataset("quadratics", "regression", x, y, 1, scale=None)
    return Federation(dataset, splits, names, {"kind": "sites", "alpha": None}, zero, one, 0.0, 1.0)


def around(*optima) -> Federation:
    """f_k(w) = ||w - a_k||^2 / 2 for each of the optima a_k in the plane, whatever the rows of its one batch of two."""
    return clients_of(*((np.eye(2), a) for a in optima))


def drifting() -> Federation:
    """Three clients of another curvature and another optimum each, one of them with more rows."""
    rng, rows = np.random.default_rng(3), []
    for n, scale, optimum in ((12, (0.3, 1.5), (2, -1)), (12, (1.2, 0.4), (-1, 3)), (20, (0.8, 0.8), (0.5, 0.5))):
        x = rng.normal(size=(n, 2)) * scale
        rows.append((x, x @ np.array(optimum)))
    return clients_of(*rows)


def rows_of(federation: Federation, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = federation.clients[client].train
    return torch.from_numpy(federation.dataset.x[rows]), torch.from_numpy(federation.dataset.y[rows])


def optimum(federation: Federation) -> torch.Tensor:
    """Where the unweighted mean of the clients' losses is smallest."""
    hessian, right = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for k in range(len(federation.clients)):
        x, y = (t.double() for t in rows_of(federation, k))
        hessian, right = hessian + x.T @ x / len(y), right + x.T @ y / len(y)
    return torch.linalg.solve(hessian, right).float()


def slope(federation: Federation, client: int, w: torch.Tensor) -> torch.Tensor:
    """The gradient of a client's loss."""
    x, y = rows_of(federation, client)
    return 2 * x.T @ (x @ w - y) / len(y)


def started(federation, method, private, seed=0, **training) -> Serial:
    settings = {"rounds": 4, "epochs": 1, "batch_size": 64, "lr": 0.1, "optimizer": "sgd", **training}
    return Serial(Job(federation, method, seed, Training(**settings), private, private))


def trained(federation, method, private, rounds=1, **training) -> Serial:
    engine = started(federation, method, private, **{"rounds": max(4, rounds), **training})
    for _ in range(rounds):
        engine.round()
    return engine


def weight(engine: Serial, client: int = 0) -> torch.Tensor:
    return engine.clients[client].models["private"].w.weight.detach()[0].clone()


def tree(engine: Serial, client: int = 0, role: str = "private") -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in engine.clients[client].models[role].state_dict().items()}


def same(a, b) -> bool:
    """Whether two nests of tensors are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def interrupted(job: Job, after: int) -> Serial:
    """A run to its end that was written to disk on the way and taken up by another engine."""
    first, file = Serial(job), io.BytesIO()
    for _ in range(after):
        first.round()
    torch.save(first.state(), file)
    file.seek(0)
    second = Serial(job)
    second.restore(torch.load(file))
    for _ in range(after, job.training.rounds):
        second.round()
    return second


def uninterrupted(job: Job) -> Serial:
    engine = Serial(job)
    for _ in range(job.training.rounds):
        engine.round()
    return engine


def training_loss(engine: Serial) -> float:
    """The mean over clients of their loss on their own training rows."""
    found = []
    for client in engine.clients:
        output, _ = client.outputs("private", client.rows["train"])
        found.append(client.task.loss(output, client.data.y[client.rows["train"]]).mean())
    return float(torch.stack(found).mean())


def view(method, task: str, module: nn.Module, weights, x, y, mask=None, **more):
    """What a loss sees of some rows of a client whose private model has these weights."""
    known = make_task(task)

    def forward(role, tree, x):
        return known.read(functional_call(module, dict(tree), (x,)))

    seen = {
        "x": x,
        "y": y,
        "mask": mask,
        "outputs": {"private": forward("private", weights, x)},
        "weights": {"private": weights},
        "rows": torch.arange(len(y)),
        "uniform": torch.empty(len(y), 0),
        "counts": torch.tensor([len(y)]),
        "steps": torch.tensor(1),
        **more,
    }
    return make_batch(method, known, 0.1, seen, forward)


def padded_and_mapped(method, task: str, sizes=(5, 2, 1)):
    """The losses of clients with so many rows and their gradients: one by one, and padded in one mapped call.

    The padding holds what is not there in the rows, so that it shows where it counts.
    """
    rng = torch.Generator().manual_seed(1)
    module = nn.Linear(3, 4 if task == "classification" else 1)
    weights = {n: torch.randn((len(sizes), *w.shape), generator=rng) for n, w in module.named_parameters()}
    weights = {n: w.requires_grad_() for n, w in weights.items()}
    x = torch.randn((len(sizes), max(sizes), 3), generator=rng)
    y = torch.randn((len(sizes), max(sizes)), generator=rng)
    y = y.argsort(-1) % 4 if task == "classification" else y
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]

    def loss(w, x, y, mask=None):
        return method.loss(view(method, task, module, w, x, y, mask))

    def with_gradients(losses):
        return torch.stack(list(losses)), torch.autograd.grad(sum(losses), list(weights.values()))

    alone = [loss({n: w[k] for n, w in weights.items()}, x[k, :n], y[k, :n]) for k, n in enumerate(sizes)]
    return with_gradients(alone), with_gradients(torch.func.vmap(loss)(weights, x, y, mask).unbind())
