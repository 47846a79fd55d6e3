"""What a report shows beyond a run's record, in DIR/details/KEY.json: curves, trust, doubted samples, reliability."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd import rng
from fedekd.engines.batch import answers_plainly
from fedekd.engines.client import Client
from fedekd.engines.job import precision
from fedekd.errors import FedekdError
from fedekd.exchange import size
from fedekd.federation import Federation
from fedekd.files import write_whole
from fedekd.runs.records import Calibration, Details, DoubtedSample, Holdings, Reliability, read_details
from fedekd.validation import parse_json

DOUBTED = 24  # samples shown
DECILES = TENTHS = 10
THUMBNAIL = 96  # pixels at most on a side


def write(folder: Path, key: str, details: Details) -> None:
    write_whole(folder / "details" / f"{key}.json", json.dumps(details, separators=(",", ":")).encode())


def read(folder: str | Path, keys: Collection[str] | None = None) -> dict[str, Details]:
    """The details of all runs in a results folder that have any, or of these runs alone, by key."""
    found = {}
    for path in sorted((Path(folder) / "details").glob("*.json")):
        if keys is not None and path.stem not in keys:
            continue
        try:
            content = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise FedekdError(f"cannot read {path}: {error}; remove it to do without") from None
        found[path.stem] = read_details(content, str(path))
    return found


def describe(
    clients: Sequence[Client],
    curve: list[list[float]],
    trust: list[Any],
    exchange: list[Any],
    thumbnails: bool = False,
) -> Details:
    """Everything about one finished run: ``clients`` as training left them. No picture of a sample unless asked for."""
    job = clients[0].job
    federation, dataset = job.federation, job.federation.dataset
    counts, edges = partition(federation)
    seen, confusion, calibration = zip(*(_observed(client) for client in clients), strict=True)
    found: Details = {
        "classes": list(dataset.labels or map(str, range(dataset.outputs))) if dataset.task == "classification" else [],
        "curve": curve,
        "trust": [{"round": entry["round"], "clients": entry["clients"]} for entry in trust],
        "exchange": exchange,
        "private_bytes": size(clients[0].message("private")) if "private" in clients[0].models else 0,
        "partition": counts,
        "edges": edges,
        "distrusted": doubted(clients, [s["train"] for s in seen if s], thumbnails),
        "reliability": reliability(job.task.name, [s["test"] for s in seen if s]),
    }
    if dataset.task == "classification":
        found |= {"confusion": list(confusion), "calibration": [one for one in calibration if one]}
    return found


def _observed(client: Client) -> tuple[dict[str, dict[str, np.ndarray]] | None, list[list[int]], Calibration | None]:
    """Of the client as it answers: what the gate makes of the samples and, for classes, how many test samples of each
    were answered as which, and how sure it was of them."""
    with client.personalised():
        if client.task.name == "regression":
            return examine(client), [], None
        rows = client.rows["test"]
        with precision(client.job.training.precision, client.device):
            output, target = client.predictions(rows, "test"), client.data.y[rows]
        sureness = calibration(_array(client.task.answers(output, target)))
        number = client.job.federation.dataset.outputs
        pairs = _array(target).astype(np.int64) * number + _array(output).argmax(-1)
        counts = np.bincount(pairs, minlength=number**2).reshape(number, number).tolist()
        return examine(client), counts, sureness


def calibration(answers: np.ndarray) -> Calibration:
    """``answers`` as ``Task.answers`` gives them: [rows, target and probabilities]."""
    target, chances = answers[:, 0].astype(np.int64), answers[:, 1:]
    sure = chances.max(1)
    tenth = np.minimum((sure * TENTHS).astype(int), TENTHS - 1)
    count = np.bincount(tenth, minlength=TENTHS)
    total = np.bincount(tenth, sure, TENTHS)
    right = np.bincount(tenth[chances.argmax(1) == target], minlength=TENTHS)
    mean = np.divide(total, count, out=np.zeros(TENTHS), where=count > 0)
    return {"count": count.tolist(), "sure": [round(float(x), 4) for x in mean], "right": right.tolist()}


def partition(federation: Federation) -> tuple[list[Holdings], list[float] | None]:
    """How many samples of each class (of each tenth of the target's range) every client holds."""
    dataset, edges = federation.dataset, None
    if dataset.task == "regression":
        held = dataset.y[federation.held]
        edges = np.linspace(held.min(), held.max(), 11)
    rows: list[Holdings] = []
    for name, split in zip(federation.names, federation.clients, strict=True):
        y = dataset.y[np.concatenate([split.train, split.val, split.test])]
        held = np.bincount(y, minlength=dataset.outputs) if edges is None else np.histogram(y, edges)[0]
        rows.append({"client": name, "counts": held.tolist()})
    return rows, None if edges is None else edges.tolist()


# --- the gate, sample by sample ------------------------------------------------------------------------------


def examine(client: Client) -> dict[str, dict[str, np.ndarray]] | None:
    """By split, what the gate makes of each sample now that training is over; None for a method without a gate.

    "private" there is the client's answer, which for most methods is its private model's output.
    """
    with client.personalised():
        found = {split: _look(client, split) for split in ("train", "test")}
    return None if None in found.values() else found  # type: ignore[return-value]


@torch.no_grad()
def _look(client: Client, split: str) -> dict[str, np.ndarray] | None:
    rows = client.rows[split]
    if not {"private", "proxy"} <= client.models.keys():
        return None
    order = rng.stream(client.job.seed, "examine", split, client.number).permutation(len(rows))
    rows = rows[torch.from_numpy(order).to(client.device)]  # a gate compares a sample with its batch: mix them
    out = {role: client.outputs(role, rows) for role in ("private", "proxy")}
    parts = []
    for at in torch.arange(len(rows), device=client.device).split(client.job.training.batch_size):
        batch = client.batch(rows[at], {role: (o[at], f[at]) for role, (o, f) in out.items()})
        seen = client.method.examine(batch)
        if seen is None:
            return None
        parts.append(seen)
    columns = {name: _array(torch.cat([part[name] for part in parts])) for name in ("energy", "trust")}
    own = out["private"][0] if answers_plainly(client.method) else client.predictions(rows)
    answers = {"target": client.data.y[rows], "private": own, "proxy": out["proxy"][0]}
    if client.task.name == "regression":  # in the user's units
        answers = {name: a * client.data.scale.std + client.data.scale.mean for name, a in answers.items()}
    return {**columns, "row": _array(rows), **{name: _array(a) for name, a in answers.items()}}


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def doubted(
    clients: Sequence[Client], seen: Sequence[dict[str, np.ndarray]], thumbnails: bool = False
) -> list[DoubtedSample]:
    """The training samples on which the gate trusts the proxy least, among all clients."""
    if not seen or max(float(np.ptp(s["trust"])) for s in seen) < 1e-6:
        return []
    every = [(float(s["trust"][i]), k, i) for k, s in enumerate(seen) for i in np.argsort(s["trust"])[:DOUBTED]]
    federation = clients[0].job.federation
    shown: list[DoubtedSample] = []
    for weight, k, i in sorted(every)[:DOUBTED]:
        own = seen[k]
        shown.append(
            {
                "client": clients[k].name,
                "row": int(own["row"][i]),
                "label": _answer(federation, own["target"][i]),
                "private": _answer(federation, own["private"][i]),
                "proxy": _answer(federation, own["proxy"][i]),
                "energy": float(own["energy"][i]),
                "trust": weight,
                "image": thumbnail(federation.dataset.x[own["row"][i]]) if thumbnails else None,
            }
        )
    return shown


def _answer(federation: Federation, value: np.ndarray) -> str | float:
    """A class's name, or the number."""
    if federation.dataset.task == "regression":
        return float(value)
    label = int(value.argmax()) if value.ndim else int(value)
    return federation.dataset.labels[label] if federation.dataset.labels else str(label)


def thumbnail(x: np.ndarray) -> str | None:
    """A sample as the base64 text of a PNG, if it is an image of one or three channels."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        return None
    from PIL import Image

    low, high = (0.0, 255.0) if x.dtype == np.uint8 and x.max() > 16 else (float(x.min()), float(x.max()))
    pixels = ((x.astype(np.float64) - low) * (255 / (high - low or 1))).clip(0, 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def reliability(task: str, seen: Sequence[dict[str, np.ndarray]]) -> Reliability | None:
    """Over tenths of the test samples by rising energy: how right proxy and private model are, and the mean trust."""
    if not seen:
        return None
    whole = {name: np.concatenate([s[name] for s in seen]) for name in seen[0]}
    result: Reliability = {"energy": [], "count": [], "proxy": [], "private": [], "trust": []}
    for part in np.array_split(np.argsort(whole["energy"], kind="stable"), DECILES):
        if not len(part):
            continue
        result["count"].append(len(part))
        result["energy"].append(float(whole["energy"][part].mean()))
        result["trust"].append(float(whole["trust"][part].mean()))
        result["proxy"].append(_right(task, whole["proxy"][part], whole["target"][part]))
        result["private"].append(_right(task, whole["private"][part], whole["target"][part]))
    return result


def _right(task: str, output: np.ndarray, target: np.ndarray) -> float:
    if task == "classification":
        return float((output.argmax(-1) == target).mean())
    return float(np.sqrt(np.mean((output - target) ** 2)))
