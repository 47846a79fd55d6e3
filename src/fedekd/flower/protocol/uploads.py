"""Nothing from elsewhere counts before it is checked: names, shapes, types, finite numbers of a usual size."""

from __future__ import annotations

import torch
from torch import Tensor

from fedekd.exchange import Message
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.wire import LETTERS, NAMES, Packed

LARGEST = 1e9  # of a number: a server's half that multiplies a few of them stays finite


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
    return fits(packed, held, how, partly) or _sound(wire.unpack(packed, held))


def opened_freely(packed: Packed, largest: float) -> dict[str, Tensor] | str:
    """An answer that goes into no model, so that nothing is known of it but that it has at most ``largest`` bytes."""
    if packed.how != "none" or packed.scales:
        return f"it is packed as {packed.how[:20]!r}, not as 'none'"
    if len(packed.arrays) > NAMES or any(len(name) > LETTERS for name in packed.arrays):
        return "it has too many names, or too long ones"
    if (size := sum(array.nbytes for array in packed.arrays.values())) > largest:
        return f"it has {size / 1e6:.1f} MB, more than `largest` allows"
    return _sound(wire.unpack(packed))


def _sound(message: dict[str, Tensor]) -> dict[str, Tensor] | str:
    for name, tensor in message.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name[:60]} has NaN or infinite numbers"
        if tensor.is_floating_point() and bool((tensor.abs() > LARGEST).any()):
            return f"{name[:60]} has numbers beyond {LARGEST:g}"
    return message
