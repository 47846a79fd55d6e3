"""A site's model as a file for use elsewhere, .safetensors or .onnx, with its model card beside it."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from fedekd.errors import FedekdError, unknown
from fedekd.export.card import best_alone, card_path, make_card
from fedekd.files import write_whole
from fedekd.runs.alone import is_menu
from fedekd.runs.current import current
from fedekd.runs.metadata import ModelMetadata, OwnCode
from fedekd.runs.records import Record
from fedekd.runs.saved_models import as_safetensors, find_models
from fedekd.runs.store import read_records
from fedekd.settings import ChosenBy

KINDS = (".safetensors", ".onnx")
ALONE = "alone"  # in the place of a method: the best that the client trained alone


def export(
    folder: str | Path,
    client: str,
    to: str | Path,
    *,
    method: str | None = None,
    seed: int | None = None,
    private: str | None = None,
    proxy: str | None = None,
    with_rows: bool = False,
    chosen_by: ChosenBy | None = None,
) -> ModelMetadata:
    """Write the model that a client predicts with to ``to``, and its card next to it; returns what the card states.

    Without ``method`` it is FedeKD's, or that of the only method besides training alone; "alone" is the best model that
    this client trained alone, chosen as for verdicts: by ``chosen_by`` or, without it, as in the run. Without ``seed``
    it is the first seed's.
    ``private`` and ``proxy`` name the factories of your own models, which .onnx needs to draw the graph, as does
    ``method`` as package.module:Class for your own method that predicts with more than the private model.
    Some methods predict from training rows, which leave with the model only if ``with_rows`` is set.
    """
    target = Path(to)
    if target.suffix.lower() not in KINDS:
        raise FedekdError(f"cannot export to {str(target)!r}; name a file that ends in {' or '.join(KINDS)}")
    unusable: list[str] = []
    kept = find_models(Path(folder), unusable)
    records = read_records(Path(folder) / "results.jsonl", chosen_by)
    if chosen_by and not records:
        raise FedekdError(
            f"there are no records in {folder} to choose by; a real site chooses when its federation ends, by "
            "chosen_by in its site.toml"
        )
    try:
        if method == ALONE:
            metadata = _best_alone(kept, client, seed, records, Path(folder))
        else:
            metadata = choose(kept, client, method, seed)
    except FedekdError as error:
        also = f"; {len(unusable)} more cannot be used: {unusable[0]}" if unusable else ""
        raise FedekdError(f"{error}{also}") from None
    if metadata.keeps_rows and not with_rows:
        raise FedekdError(
            f"{metadata.method} answers from the training rows of client {metadata.client}, so the file would hold "
            "them (features and targets); add --with-rows to let them out, or choose another --method"
        )
    code = OwnCode(private, proxy, method if method and ":" in method else None)
    card = make_card(metadata, holding(records, metadata), target.name, Path(folder))
    content = _onnx if target.suffix.lower() == ".onnx" else _safetensors
    about = {name: json.dumps(value) for name, value in {**metadata.about, "card": card}.items()}
    readers = 0o600 | metadata.path.stat().st_mode & 0o666  # a site keeps its models for its owner alone
    write_whole(target, content(metadata, about, code), "--to", readers)
    write_whole(card_path(target), card.encode(), "--to", readers)
    return metadata


def holding(records: Sequence[Record], metadata: ModelMetadata) -> Sequence[Record]:
    """What the page of the folder is made from, or everything where the model's own run is not among that."""
    found = current(records)
    return found if any(record["key"] == metadata.about.get("key") for record in found) else records


def choose(kept: list[ModelMetadata], client: str, method: str | None, seed: int | None) -> ModelMetadata:
    """The one that is asked for, a method by its name or its class; of several that fit, the last that was trained."""
    methods = list(dict.fromkeys(metadata.method for metadata in kept))
    if method is None:
        joined = [name for name in methods if not is_menu(name)] or methods
        method = joined[0] if len(joined) == 1 else "fedekd"
        if method not in joined:
            raise FedekdError(f"several methods were run; say whose model with --method: {', '.join(joined)}")
    fitting = [metadata for metadata in kept if method in (metadata.method, metadata.answers and metadata.answers.code)]
    if not fitting:
        raise unknown("method", method, methods)
    seeds = sorted({metadata.seed for metadata in fitting})
    if seed is not None and seed not in seeds:
        raise FedekdError(f"no model of {method} with seed {seed} is kept; kept: {', '.join(map(str, seeds))}")
    fitting = [metadata for metadata in fitting if metadata.seed == (seeds[0] if seed is None else seed)]
    own = [metadata for metadata in fitting if metadata.client == client]
    if not own:
        names = ", ".join(dict.fromkeys(metadata.client for metadata in fitting))
        raise FedekdError(f"no client {client!r} here; the clients are: {names}")
    return max(own, key=lambda metadata: metadata.path.stat().st_mtime)


def _best_alone(
    kept: list[ModelMetadata], client: str, seed: int | None, records: Sequence[Record], folder: Path
) -> ModelMetadata:
    """Of what the client trained alone, beside its last run or in its federation, the best by its validation rows."""
    local = choose(kept, client, "local", seed)
    label, key = best_alone(local, records, folder)
    of_run = [m for m in kept if m.method == label and key in (None, m.about.get("key"))]
    if not of_run:
        raise FedekdError(f"the best that client {client} trained alone is {label}, and its model is not kept here")
    return choose(of_run, client, label, local.seed)


def _safetensors(metadata: ModelMetadata, about: dict[str, str], code: OwnCode) -> bytes:
    from fedekd.runs.inference import read_weights

    return as_safetensors(read_weights(metadata), about)


def _onnx(metadata: ModelMetadata, about: dict[str, str], code: OwnCode) -> bytes:
    import torch

    from fedekd.runs.inference import load_model

    model = load_model(metadata, code)
    rows = torch.zeros(2, *metadata.shape)
    output = "probabilities" if metadata.classifies else "prediction"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of every package that is not there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (rows,),
                input_names=["rows"],
                output_names=[output],
                dynamo=True,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                custom_translation_table=_translations(),
            )
    except ImportError as error:
        raise FedekdError(f"an .onnx file needs {error.name or error}; pip install 'fedekd[onnx]'") from None
    except torch.onnx.errors.OnnxExporterError as error:
        why = (
            str(error.__cause__ or error)
            .strip()
            .splitlines()[0]
            .removesuffix(" See the stack trace for more information.")
        )
        what = metadata.model if metadata.answers is None else f"the answers of {metadata.method}"
        raise FedekdError(f"torch cannot export {what} to ONNX: {why}") from None
    assert program is not None
    program.model.metadata_props.update(about)
    return program.model_proto.SerializeToString()


def _translations() -> dict[Any, Any]:
    """What torch itself cannot draw: distances between rows, in double because their sum of squares cancels."""
    import torch
    from onnxscript import FLOAT, opset18

    op = cast("Any", opset18)

    def distances(a: FLOAT, b: FLOAT, p: float = 2.0, compute_mode: int | None = None) -> FLOAT:
        if p != 2:
            raise NotImplementedError(f"distances of order {p}")
        a, b = (op.Cast(rows, to=11) for rows in (a, b))
        squares = [op.ReduceSum(op.Mul(rows, rows), op.Constant(value_ints=[-1]), keepdims=1) for rows in (a, b)]
        inner = op.MatMul(a, op.Transpose(b, perm=[1, 0]))
        found = op.Sub(op.Add(squares[0], op.Transpose(squares[1], perm=[1, 0])), op.Add(inner, inner))
        return op.Cast(op.Sqrt(op.Relu(found)), to=1)

    return {torch.ops.aten._cdist_forward.default: distances}
