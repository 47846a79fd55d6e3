"""What travels between server and site: words, and what is exchanged, packed to take fewer bytes.

``none`` sends the model as it is. ``fp16`` and ``int8`` send the difference to the model that both ends hold (what
the site received last, or the common start), which is small, so that little is lost. Up, what rounding took is kept
at the site and added to the next upload (error feedback). Down, the next difference is made to what the sites really
hold, so earlier rounding mends itself. What is no model, or is answered to each site apart, is sent as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.exchange import Message
from fedekd.flower.protocol import PIECE
from fedekd.validation import parse_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

Word = str | int | float
LIMIT_FP16 = 65504.0
LAYOUTS = "models"  # among the words: each model's name, packing, tensors and scales
PACKED = {"fp16": torch.float16, "int8": torch.int8}
KINDS = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)
# More than these is a mistake, or an attack.
WORDS, MODELS, NAMES = 100, 100, 10_000  # words and models in a message, tensors in a model
LETTERS, TEXT = 300, 1 << 24  # letters of a name, and of a word's text
DIMENSIONS, LONGEST = 32, 1 << 40  # of a tensor


@dataclass(frozen=True)
class Packed:
    """A model, or what else is exchanged. ``scales`` has a number for each tensor that was rounded to int8."""

    how: str
    arrays: dict[str, np.ndarray]
    scales: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Payload:
    words: dict[str, Word] = field(default_factory=dict)
    models: dict[str, Packed] = field(default_factory=dict)  # and what else is exchanged, by name

    @property
    def size(self) -> int:
        """Bytes of the models, of what says how they are laid out, and of the words; Flower's envelope comes on top."""
        arrays = (a for packed in self.models.values() for a in packed.arrays.values())
        return sum(a.nbytes for a in arrays) + len(json.dumps(self.words)) + len(layouts_text(self))


# --- packing -------------------------------------------------------------------------------------------------


def pack(
    message: Message, how: str, held: Message | None = None, residual: Message | None = None
) -> tuple[Packed, dict[str, Tensor]]:
    """The model packed, and what rounding took from it. ``held`` is the model that the other end has."""
    message = {name: tensor.detach().cpu() for name, tensor in message.items()}
    if how == "none":
        return Packed(how, {name: tensor.numpy().copy() for name, tensor in message.items()}), {}
    assert held is not None
    arrays, scales, left = {}, {}, {}
    for name, tensor in message.items():
        if not tensor.is_floating_point():
            arrays[name] = tensor.numpy().copy()
            continue
        wanted = tensor - held[name].cpu()
        if residual:
            wanted = wanted + residual[name]
        if how == "fp16":
            small = wanted.clamp(-LIMIT_FP16, LIMIT_FP16).half()
            back = small.to(tensor.dtype)
        else:
            scale = float(wanted.abs().max()) / 127 if wanted.numel() else 0.0
            small = (
                (wanted / scale).round().clamp(-127, 127).to(torch.int8)
                if scale
                else torch.zeros_like(wanted).to(torch.int8)
            )
            back = small.to(tensor.dtype) * scale
            scales[name] = scale
        arrays[name], left[name] = small.numpy(), wanted - back
    return Packed(how, arrays, scales), left


def unpack(packed: Packed, held: Message | None = None) -> dict[str, Tensor]:
    """The model again. Names, shapes and types must have been checked where the other end is not trusted."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in packed.arrays.items()}
    if packed.how == "none":
        return tensors
    if packed.how not in PACKED or held is None:
        raise FedekdError(f"a model packed as {packed.how!r} cannot be unpacked here")
    for name, tensor in tensors.items():
        if held[name].is_floating_point():
            difference = tensor.to(held[name].dtype) * packed.scales.get(name, 1.0)
            tensors[name] = held[name].cpu() + difference
    return tensors


def wire_dtype(tensor: Tensor, how: str) -> torch.dtype:
    """The type in which a tensor travels."""
    return PACKED.get(how, tensor.dtype) if tensor.is_floating_point() else tensor.dtype


# --- payloads on disk and in Flower's records -----------------------------------------------------------------


def to_state(payload: Payload) -> dict[str, Any]:
    """A payload as plain values and tensors, to be saved."""
    models = {
        role: {"how": p.how, "scales": p.scales, "arrays": {k: torch.from_numpy(a) for k, a in p.arrays.items()}}
        for role, p in payload.models.items()
    }
    return {"words": payload.words, "models": models}


def from_state(state: Mapping[str, Any]) -> Payload:
    models = {
        role: Packed(p["how"], {k: t.numpy() for k, t in p["arrays"].items()}, p["scales"])
        for role, p in state["models"].items()
    }
    return Payload(dict(state["words"]), models)


def to_records(payload: Payload) -> RecordDict:
    """Words in one record and all models' bytes in another, or in several: every record costs Flower a request."""
    from flwr.app import ConfigRecord, RecordDict

    content = bytearray()
    for packed in payload.models.values():
        for array in packed.arrays.values():
            content += np.ascontiguousarray(array).tobytes()
    words = {**payload.words, LAYOUTS: layouts_text(payload)}
    pieces = [bytes(content[start : start + PIECE]) for start in range(0, len(content), PIECE)]
    records = {f"piece {number}": ConfigRecord({"bytes": piece}) for number, piece in enumerate(pieces)}
    return RecordDict({"words": ConfigRecord(words), **records})  # type: ignore[arg-type,dict-item]


def layouts_text(payload: Payload) -> str:
    layouts = []
    for role, packed in payload.models.items():
        layout = [[name, str(array.dtype), list(array.shape)] for name, array in packed.arrays.items()]
        layouts.append([role, packed.how, layout, packed.scales])
    return json.dumps(layouts, separators=(",", ":"))


def from_records(records: RecordDict) -> Payload:
    """A payload from what another machine sent; raises ``FedekdError`` for anything else."""
    try:
        found: dict[str, Any] = dict(records.config_records)
        words = dict(found.pop("words"))
        layouts = parse_json(words.pop(LAYOUTS).encode())
        _bounded(len(words) <= WORDS and all(_is_word(name, word) for name, word in words.items()), "words")
        content = memoryview(b"".join(found[f"piece {number}"]["bytes"] for number in range(len(found))))
        models: dict[str, Packed] = {}
        _bounded(type(layouts) is list and len(layouts) <= MODELS, "models")
        for role, how, layout, scales in layouts:
            _bounded(_is_name(role) and _is_name(how) and role not in models, "a model's name")
            arrays, content = _cut(content, layout)
            _bounded(type(scales) is dict and len(scales) <= len(arrays), "scales")
            models[role] = Packed(how, arrays, {name: float(scale) for name, scale in scales.items()})
        _bounded(not content, "left over")
    except Exception as error:  # numpy, json and Flower raise a dozen kinds for broken bytes
        raise FedekdError(f"a message cannot be read ({type(error).__name__})") from None
    return Payload(words, models)


def _cut(content: memoryview, layout: list[Any]) -> tuple[dict[str, np.ndarray], memoryview]:
    """One model's arrays, and the bytes that come after them."""
    arrays: dict[str, np.ndarray] = {}
    _bounded(type(layout) is list and len(layout) <= NAMES, "tensors")
    for name, kind, shape in layout:
        _bounded(_is_name(name) and name not in arrays and kind in KINDS, "a tensor")
        _bounded(type(shape) is list and len(shape) <= DIMENSIONS, "a shape")
        _bounded(all(type(n) is int and 0 <= n <= LONGEST for n in shape), "a shape")
        dtype = np.dtype(kind)
        end = dtype.itemsize * math.prod(shape)
        arrays[name] = np.frombuffer(content[:end], dtype).reshape(shape).copy()
        content = content[end:]
    return arrays, content


def _is_name(given: Any) -> bool:
    return type(given) is str and len(given) <= LETTERS


def _is_word(name: Any, word: Any) -> bool:
    return _is_name(name) and (type(word) in (int, float) or (type(word) is str and len(word) <= TEXT))


def _bounded(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
