"""The clients' trained private models, in DIR/models/KEY/POSITION.safetensors, each with what it takes to use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.settings import model_name
from fedekd.store import Record, write_whole

if TYPE_CHECKING:
    from fedekd.engines.client import Client


@dataclass(frozen=True)
class Kept:
    """A model file and what it says of itself."""

    path: Path
    about: dict[str, Any]


def write(folder: Path, record: Record, position: int, client: Client) -> None:
    from safetensors.torch import save

    # safetensors refuses tensors that share memory, as tied weights do
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in client.message("private").items()}
    about = {name: json.dumps(value) for name, value in card(record, position, client).items()}
    write_whole(folder / "models" / record["key"] / f"{position}.safetensors", save(tensors, about))


def card(record: Record, position: int, client: Client) -> dict[str, Any]:
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
        "fedekd": __version__,
    }


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
