"""Nothing from elsewhere counts before it is checked: names, shapes, types, finite numbers; a model at the server also
for a norm like the other sites', and where these are few, like the global model's."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from fedekd.exchange import Message
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.wire import LETTERS, NAMES, Packed

FACTOR = 5.0
"""A model whose norm is so many times the median of all, or so many times less, is no honest neighbour of theirs.

The norm is the whole model's, not its update's: a site with twenty times the rows takes twenty times the steps and
may rightly move twenty times as far, but its weights stay of one size with the others'.
"""
ALONE = 20.0
"""The same for a model that has none beside it, but only the global model that it was trained from.

That is no neighbour: in the first round it has the size that a factory gave it. The built-in proxies stay near it (in
10 rounds on digits and on diabetes, with the settings of ``fedekd run``, a round changed the norm by 7 % at most), but
a linear one shrank to a ninth in a first round of 100 epochs, and a hundredfold learning rate or the noise of a small
privacy budget made a first round's norm seven to ten times as large.
"""


def fits(packed: Packed, held: Message, how: str, partly: bool = False) -> str | None:
    """Why what is packed cannot be unpacked at all; None if it can. ``partly``: it may leave tensors out."""
    if packed.how != how:
        return f"it is packed as {packed.how[:20]!r}, not as {how!r}"
    lacking, more = [n for n in held if n not in packed.arrays], [n for n in packed.arrays if n not in held]
    if partly and lacking:
        held, lacking = {name: t for name, t in held.items() if name in packed.arrays}, []
    if lacking or more:
        return f"it has no tensor {lacking[0]!r}" if lacking else f"it has a tensor {more[0][:60]!r} that is unknown"
    for name, tensor in held.items():
        array = packed.arrays[name]
        if array.shape != tuple(tensor.shape):
            return f"{name} has shape {array.shape}, not {tuple(tensor.shape)}"
        wanted = str(wire.wire_dtype(tensor, how)).removeprefix("torch.")
        if str(array.dtype) != wanted:
            return f"{name} is {array.dtype}, not {wanted}"
    rounded = {name for name, tensor in held.items() if tensor.is_floating_point()} if how == "int8" else set()
    if set(packed.scales) != rounded:
        return "its scales do not belong to its tensors"
    return None


def opened(packed: Packed, held: Message, how: str, partly: bool = False) -> dict[str, Tensor] | str:
    """The tensors, or why they are refused."""
    return fits(packed, held, how, partly) or _finite(wire.unpack(packed, held))


def opened_freely(packed: Packed, largest: float) -> dict[str, Tensor] | str:
    """An answer that goes into no model, so that nothing is known of it but that it has at most ``largest`` bytes."""
    if packed.how != "none" or packed.scales:
        return f"it is packed as {packed.how[:20]!r}, not as 'none'"
    if len(packed.arrays) > NAMES or any(len(name) > LETTERS for name in packed.arrays):
        return "it has too many names, or too long ones"
    if (size := sum(array.nbytes for array in packed.arrays.values())) > largest:
        return f"it has {size / 1e6:.1f} MB, more than `largest` allows"
    return _finite(wire.unpack(packed))


def _finite(message: dict[str, Tensor]) -> dict[str, Tensor] | str:
    for name, tensor in message.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name[:60]} has NaN or infinite numbers"
    return message


def outsized(messages: Mapping[str, Message], held: Message) -> dict[str, str]:
    """By site: why its model is too large or too small.

    Two models cannot outvote each other, so the global model that the sites were given has a third voice. Where both
    agree against it they have learnt much, and are right.
    """
    norms, given = {site: norm(message) for site, message in messages.items()}, norm(held)
    middle = median([*norms.values(), given, given][: max(3, len(norms))])
    if not middle:
        return {}  # models may begin with zeros, from which everything is far
    factor = ALONE if len(norms) == 1 else FACTOR
    voices = {1: "the global model's", 2: "the median of 2 sites and the global model"}
    whose = voices.get(len(norms), f"the median of {len(norms)} sites")
    return {
        site: f"its norm {one:.3g} is far from {middle:.3g}, {whose}"
        for site, one in norms.items()
        if not middle / factor <= one <= middle * factor
    }


def norm(message: Message) -> float:
    squares = (t.double().square().sum() for t in message.values() if t.is_floating_point())
    return float(sum(squares)) ** 0.5
