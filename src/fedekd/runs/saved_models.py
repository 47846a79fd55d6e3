"""What the clients answer with, in DIR/models/KEY/POSITION.safetensors, each with what it takes to use it.

Most methods answer with the private model, and the file holds its weights by their names. Of any other method it holds
models/ROLE/NAME for every role that `predict` reads, and memory/..., received/... and gradients/... of the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.files import failed_read, write_whole
from fedekd.runs.metadata import KNOWLEDGE, ModelMetadata
from fedekd.settings import MANY, model_name
from fedekd.validation import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.engines.client import Client
    from fedekd.federation import Federation


def write(folder: Path, record: Mapping[str, Any], position: int, client: Client, *, option: str = "--out") -> None:
    path = folder / "models" / record["key"] / f"{position}.safetensors"
    with client.personalised():
        # safetensors refuses tensors that share memory, as tied weights do
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in held(client).items()}
        about = describe(record, position, client, tensors)
    if "answers" in about:
        from fedekd.runs.inference import check_answers

        check_answers(path, about, client.job, tensors)
    write_whole(path, as_safetensors(tensors, {name: json.dumps(value) for name, value in about.items()}), option)


def as_safetensors(tensors: dict[str, Tensor], about: dict[str, str]) -> bytes:
    """A file's content, the same bytes whenever it says the same: safetensors itself writes ``about`` in any order."""
    from safetensors.torch import save

    content = save(tensors, about)
    start = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:start])
    head["__metadata__"] = dict(sorted(about.items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


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


def describe(record: Mapping[str, Any], position: int, client: Client, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What a model's file says of it: where it comes from, what it takes and gives, how good it is."""
    from fedekd.models import own_factory

    job, own = client.job, record["clients"][position]
    federation, dataset = job.federation, job.federation.dataset
    chosen = own.get("chosen")
    then = chosen["value"] if chosen and chosen["round"] == client.round else own["value"]
    return {
        "role": "private",
        "client": own["id"],
        "dataset": dataset.name,
        "method": record["label"],
        "seed": job.seed,
        "model": model_name(own_factory(job.private, client.number)),
        "number": client.number,  # which a factory that takes `client` is given
        "task": dataset.task,
        "shape": list(dataset.x.shape[1:]),
        "outputs": dataset.outputs,
        "labels": list(dataset.labels),
        "columns": list(dataset.columns),
        "gain": federation.gain.tolist(),
        "shift": federation.shift.tolist(),
        "scaled_by": federation.partition.get("scaling", "pooled"),
        **_filling(federation),
        "target_mean": federation.target_mean,
        "target_std": federation.target_std,
        "metric": record["metric"],
        **{name: own[name] for name in ("value", "local", "delta", "n_train", "n_val", "n_test")},
        "round": client.round,
        "rounds": job.training.rounds,
        "value_at_round": then,  # `value` is the record's, after the last round
        "key": record["key"],
        "personalised": bool(client.method.personalise()),
        **_answers(client, tensors),
        "fedekd": __version__,
    }


def _filling(federation: Federation) -> dict[str, Any]:
    """How the table was read, and what missing values become, where the user has said so."""
    reading = federation.dataset.reading.changes()
    about: dict[str, Any] = {"reading": reading} if reading else {}
    if federation.fill is not None and reading.get("missing"):
        about["fill"] = federation.fill.tolist()
    return about


def _answers(client: Client, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """How an answer is made of a file's tensors, where it is not the private model's alone."""
    from fedekd.engines.batch import answers_plainly, held_to_answer
    from fedekd.models import own_factory

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
        "proxy": model_name(own_factory(job.proxy, client.number))
        if any(method.root(role) != "private" for role in roles)
        else None,
        "counts": client.counts.tolist(),
        "lr": job.training.lr,
        "steps": client.steps,
        "keeps_rows": method.keeps_rows,
    }
    try:
        return {"answers": json.loads(json.dumps(about))}
    except TypeError as error:
        raise FedekdError(f"a model file cannot hold the parameters of {method.name}: {error}") from None


def _about(path: Path) -> dict[str, Any]:
    """What a model's file says of it, without its weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:
            file.read(1)  # what the system refuses, it refuses here, and safetensors says no more than that
        with safe_open(path, "numpy") as file:
            about = file.metadata() or {}
        return {name: parse_json(value.encode()) for name, value in about.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise failed_read(path, error, FedekdError(f"{path} is not a whole .safetensors file ({error})")) from None


def read_metadata(path: Path) -> ModelMetadata:
    """What a .safetensors file says of its model; reads the head of the file only."""
    if not path.is_file():
        raise FedekdError(f"there is no model file {str(path)!r}; `fedekd export` makes one")
    return ModelMetadata.of(path, _about(path))


def find_models(folder: Path, unusable: list[str] | None = None) -> list[ModelMetadata]:
    """The models that a run has kept in its folder; what is wrong with a file goes to ``unusable``, if that is given.

    One that cannot be used does not stand in the way of the others, unless it is the only one.
    """
    if not folder.is_dir():
        raise FedekdError(f"there is no folder {str(folder)!r}; give the --out folder of a run")
    found, wrong = list[ModelMetadata](), list[FedekdError]()
    for path in sorted((folder / "models").glob("*/*.safetensors")):
        try:
            found.append(read_metadata(path))
        except FedekdError as error:
            wrong.append(error)
    if wrong and not found:
        raise wrong[0]
    if unusable is not None:
        unusable += map(str, wrong)
    if not found and (below := _newest_below(folder)):
        raise FedekdError(f"no models are kept in {folder} itself; give the folder of one federation: {below}")
    if not found and any((folder / name).exists() for name in ("agreement.json", "site.toml")):
        raise FedekdError(f"no models are kept in {folder} yet: a real site has them after its last visit")
    if not found:
        raise FedekdError(
            f"no models are kept in {folder}; train into a new --out folder with `--models first`, and with fewer than "
            f"{MANY:,} clients"
        )
    return found


def _newest_below(folder: Path) -> Path | None:
    """Where a site keeps its models: in state/FEDERATION of its own folder."""
    models = [path for above in ("*", "*/*") for path in folder.glob(f"{above}/models/*/*.safetensors")]
    return max(models, key=lambda path: path.stat().st_mtime).parents[2] if models else None
