"""What the clients answer with, in DIR/models/KEY/POSITION.safetensors, each with what it takes to use it.

Most methods answer with the private model, and the file holds its weights by their names. Of any other method it holds
models/ROLE/NAME for every role that `predict` reads, and memory/..., received/... and gradients/... of the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.files import write_whole
from fedekd.runs.store import Record
from fedekd.settings import model_name

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.engines.client import Client

KNOWLEDGE = ("memory", "received", "gradients")


@dataclass(frozen=True)
class Kept:
    """A model file and what it says of itself."""

    path: Path
    about: dict[str, Any]


def write(folder: Path, record: Record, position: int, client: Client) -> None:
    from safetensors.torch import save

    path = folder / "models" / record["key"] / f"{position}.safetensors"
    with client.personalised():
        # safetensors refuses tensors that share memory, as tied weights do
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in held(client).items()}
        about = card(record, position, client, tensors)
    if "answers" in about:
        from fedekd.export.ready import try_out

        try_out(path, about, client.job, tensors)
    write_whole(path, save(tensors, {name: json.dumps(value) for name, value in about.items()}))


def held(client: Client) -> dict[str, Tensor]:
    """All tensors that the client's answers are made from."""
    from fedekd.engines.batch import answers_plainly, held_to_answer

    if answers_plainly(client.method):
        return dict(client.message("private"))
    models = {
        f"models/{role}/{name}": tensor
        for role in held_to_answer(client.method)
        for name, tensor in client.message(role).items()
    }
    return models | {name: t for what in KNOWLEDGE for name, t in _leaves(client, what, getattr(client, what))}


def _leaves(client: Client, path: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    from torch import Tensor

    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict) and all(isinstance(key, str) and key and "/" not in key for key in tree):
        for key, value in tree.items():
            yield from _leaves(client, f"{path}/{key}", value)
    else:
        raise FedekdError(
            f"a model file cannot hold {path} of {client.method.name}: it is {type(tree).__name__}, and must be a "
            "tensor, or a dict of them under names without a slash"
        )


def nested(leaves: dict[str, Tensor]) -> dict[str, Any]:
    """The trees of KNOWLEDGE whose leaves were written."""
    trees: dict[str, Any] = {what: {} for what in KNOWLEDGE}
    for name, tensor in leaves.items():
        *path, last = name.split("/")
        tree = trees
        for key in path:
            tree = tree.setdefault(key, {})
        tree[last] = tensor
    return trees


def card(record: Record, position: int, client: Client, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What a model's file says of it: where it comes from, what it takes and gives, how good it is."""
    job, own = client.job, record["clients"][position]
    federation, dataset = job.federation, job.federation.dataset
    return {
        "role": "private",
        "client": own["id"],
        "dataset": dataset.name,
        "method": record["label"],
        "seed": job.seed,
        "model": model_name(job.private),
        "number": client.number,  # which a factory that takes `client` is given
        "task": dataset.task,
        "shape": list(dataset.x.shape[1:]),
        "outputs": dataset.outputs,
        "labels": list(dataset.labels),
        "columns": list(getattr(dataset, "columns", ())),
        "gain": federation.gain.tolist(),
        "shift": federation.shift.tolist(),
        "scaled_by": federation.partition.get("scaling", "pooled"),
        "target_mean": federation.target_mean,
        "target_std": federation.target_std,
        "metric": record["metric"],
        **{name: own[name] for name in ("value", "local", "delta", "n_train", "n_val", "n_test")},
        "key": record["key"],
        "personalised": bool(client.method.personalise()),
        **_answers(client, tensors),
        "fedekd": __version__,
    }


def _answers(client: Client, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """How an answer is made of a file's tensors, where it is not the private model's alone."""
    from fedekd.engines.batch import answers_plainly, held_to_answer

    method, job = client.method, client.job
    if answers_plainly(method):
        return {}
    roles = held_to_answer(method)
    about = {
        "method": method.name,
        "code": model_name(type(method)),
        "parameters": asdict(method),
        "roles": roles,
        "knows": sorted(name for name in tensors if not name.startswith("models/")),
        "proxy": model_name(job.proxy) if any(method.root(role) != "private" for role in roles) else None,
        "counts": client.counts.tolist(),
        "lr": job.training.lr,
        "steps": client.steps,
        "keeps_rows": method.keeps_rows,
    }
    try:
        return {"answers": json.loads(json.dumps(about))}
    except TypeError as error:
        raise FedekdError(f"a model file cannot hold the parameters of {method.name}: {error}") from None


def read_card(path: Path) -> dict[str, Any]:
    """What a model's file says of it, without its weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            about = file.metadata() or {}
        return {name: json.loads(value) for name, value in about.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise FedekdError(f"{path} is not a whole .safetensors file ({error})") from None


def kept(folder: str | Path) -> Iterator[Kept]:
    """Every model that the runs in a results folder have left."""
    for path in sorted((Path(folder) / "models").glob("*/*.safetensors")):
        yield Kept(path, read_card(path))
