"""Use a site's exported model on new rows: the class and its probability, or the number in the user's units."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.errors import FedekdError
from fedekd.export.inputs import read_inputs
from fedekd.files import unreadable
from fedekd.runs.metadata import ModelMetadata, OwnCode
from fedekd.runs.saved_models import read_metadata
from fedekd.validation import parse_json

BATCH = 256
Answer = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Predictions:
    """What the model says of each row, in the rows' order."""

    metadata: ModelMetadata
    names: list[str]
    """The number of each row, from 1, what the file calls it, or the name of its picture."""
    values: np.ndarray
    """Probabilities [N, classes], or numbers [N]."""
    ignored: tuple[str, ...]
    """Columns of the file that the model was not trained on."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row's name, with its class and that one's probability, or with the number predicted."""
        for name, value in zip(self.names, self.values, strict=True):
            if self.metadata.classifies:
                best = int(value.argmax())
                yield {"row": name, "class": self.metadata.labels[best], "probability": f"{value[best]:.4f}"}
            else:
                yield {"row": name, "prediction": f"{value:.6g}"}

    def text(self) -> str:
        """The rows as CSV."""
        stream = io.StringIO()
        rows = list(self.rows())
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()


def predict(
    model: str | Path,
    file: str | Path,
    *,
    private: str | None = None,
    proxy: str | None = None,
    method: str | None = None,
    named_by: str | None = None,
) -> Predictions:
    """The model's predictions for the rows of a table or an .npz file, a picture or a folder of pictures.

    ``named_by`` is the column of a table that names its rows in the predictions, instead of their numbers.
    ``private`` and ``proxy`` name the factories of your own models, ``method`` the class of your own method that
    predicts with more than its private model; an .onnx file holds its graph and needs none of them.
    """
    path, code = Path(model), OwnCode(private, proxy, method)
    metadata, answer = _from_onnx(path) if path.suffix.lower() == ".onnx" else _from_safetensors(path, code)
    unseen = read_inputs(Path(file), metadata, named_by)
    pieces = [answer(unseen.x[start : start + BATCH]) for start in range(0, len(unseen.x), BATCH)]
    values = np.concatenate(pieces)
    if values.shape != ((len(unseen.x), metadata.outputs) if metadata.classifies else (len(unseen.x),)):
        raise FedekdError(f"{path} gives answers of shape {values.shape} for {len(unseen.x)} rows; export it again")
    if not np.isfinite(values).all():
        row = unseen.names[int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))[0])]
        raise FedekdError(f"{path} gives no number for row {row}; is it as large as those it was trained on?")
    return Predictions(metadata, unseen.names, values, unseen.ignored)


def _from_safetensors(path: Path, code: OwnCode) -> tuple[ModelMetadata, Answer]:
    metadata = read_metadata(path)
    import torch

    from fedekd.runs.inference import load_model

    model = load_model(metadata, code)

    @torch.no_grad()
    def answer(rows: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(np.ascontiguousarray(rows))).numpy()

    return metadata, answer


def _from_onnx(path: Path) -> tuple[ModelMetadata, Answer]:
    if not path.is_file():
        raise FedekdError(f"there is no model file {str(path)!r}; `fedekd export` makes one")
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise FedekdError(
            "an .onnx file needs onnxruntime; pip install onnxruntime, or take the .safetensors"
        ) from None
    runtime.set_default_logger_severity(4)
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        about = {name: parse_json(text.encode()) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    except Exception as error:  # the runtime has a dozen kinds of its own, with no common base
        why = str(error).strip().splitlines()[0]
        raise FedekdError(f"{path} is not a whole .onnx file ({why}); export it again") from None
    name = session.get_inputs()[0].name
    return ModelMetadata.of(path, about), lambda rows: session.run(None, {name: rows.astype(np.float32)})[0]
