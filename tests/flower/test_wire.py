"""Models on the wire: exact when whole, near and mended over time when packed, counted by the byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.wire import Packed, Payload


def model(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": scale * torch.randn(40, 30, generator=generator),
        "b": scale * torch.randn(7, generator=generator),
        "count": torch.tensor(seed),
    }


def near(a, b):
    return max(float((a[k] - b[k]).abs().max()) for k in ("w", "b"))


def test_whole_is_exact():
    packed, left = wire.pack(model(1), "none")
    back = wire.unpack(packed)
    assert all(torch.equal(back[k], t) for k, t in model(1).items())
    assert left == {}


@pytest.mark.parametrize(("how", "bytes_each", "error"), [("fp16", 2, 1e-3), ("int8", 1, 1.1e-2)])
def test_packed_is_small_and_near(how, bytes_each, error):
    held = model(0)
    new = {k: t + 0.1 * model(1)[k] if k != "count" else torch.tensor(5) for k, t in held.items()}
    packed, left = wire.pack(new, how, held)
    back = wire.unpack(packed, held)
    assert near(back, new) < error * 0.5
    assert torch.equal(back["count"], new["count"])
    assert sum(a.nbytes for k, a in packed.arrays.items() if k != "count") == bytes_each * (40 * 30 + 7)
    assert near({k: back[k] + left[k] for k in left}, new) < 1e-6, "what rounding took is what is left"


@pytest.mark.parametrize("how", ["fp16", "int8"])
def test_error_feedback_makes_up_for_rounding(how):
    """Over many uploads of one model the receiver's mean comes nearer than any single upload; without, it does not."""
    held, target = model(0), {**model(0), **{k: model(0)[k] + 0.05 * model(2)[k] for k in ("w", "b")}}

    def mean_error(feedback):
        total, residual = {k: torch.zeros_like(t) for k, t in held.items() if k != "count"}, {}
        for _ in range(50):
            packed, left = wire.pack(target, how, held, residual if feedback else None)
            residual = left
            back = wire.unpack(packed, held)
            for k in total:
                total[k] += back[k] / 50
        return near(total, target)

    assert mean_error(True) < mean_error(False) / 5


def test_nothing_to_send_is_nothing():
    packed, left = wire.pack(model(3), "int8", model(3))
    assert all(not a.any() for k, a in packed.arrays.items() if k != "count")
    assert near(wire.unpack(packed, model(3)), model(3)) == 0
    assert all(float(t.abs().max()) == 0 for t in left.values())


def test_a_difference_needs_what_it_was_made_to():
    packed, _ = wire.pack(model(1), "int8", model(0))
    with pytest.raises(FedekdError, match="cannot be unpacked"):
        wire.unpack(packed)
    with pytest.raises(FedekdError, match="cannot be unpacked"):
        wire.unpack(Packed("zip", packed.arrays), model(0))


def payload():
    packed, _ = wire.pack(model(1), "int8", model(0))
    return Payload({"code": 0, "name": "north", "value": 0.25}, {"proxy": packed})


def same(a, b):
    assert a.words == b.words
    assert a.models.keys() == b.models.keys()
    for role, packed in a.models.items():
        assert (packed.how, packed.scales) == (b.models[role].how, b.models[role].scales)
        assert all(np.array_equal(array, b.models[role].arrays[k]) for k, array in packed.arrays.items())


def test_a_letter_survives_the_disk(tmp_path):
    torch.save(wire.to_state(payload()), tmp_path / "payload")
    same(payload(), wire.from_state(torch.load(tmp_path / "payload", weights_only=True)))


def test_a_letter_survives_flower():
    pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
    same(payload(), wire.from_records(wire.to_records(payload())))


def test_large_models_travel_in_pieces(monkeypatch):
    pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
    monkeypatch.setattr(wire, "PIECE", 1000)
    both = Payload({}, {"proxy": payload().models["proxy"], "private": wire.pack(model(2), "none")[0]})
    records = wire.to_records(both)
    assert len(records) == 1 + -(-sum(a.nbytes for p in both.models.values() for a in p.arrays.values()) // 1000)
    same(both, wire.from_records(records))
    del records["piece 1"]
    with pytest.raises(FedekdError, match="a message cannot be read"):
        wire.from_records(records)


MODELS = [
    "[]",
    "nonsense",
    '[["proxy", "none", [], {}]]', '[["proxy", "none", [["w", "float32", [3]]], {}]]',
    '[["proxy", "none", [["w", "object", [1]]], {}]]', '[["proxy", "none", [["w", "uint8", [-8]]], {}]]',
    '[["proxy", "none", [["w", "uint8", [16]]], {}]]', '[["proxy", "none", [[1, "uint8", [8]]], {}]]',
    '[["proxy", "none", [["w", "U2", [1]]], {}]]', '[["proxy", "none", [["w", "uint8", [8]]], {"w": "x"}]]',
]  # fmt: skip


@pytest.mark.parametrize("layouts", MODELS)
def test_a_layout_that_does_not_fit_is_one_clear_error(layouts):
    app = pytest.importorskip("flwr.app", reason="pip install 'fedekd[flower]'")
    words, piece = app.ConfigRecord({"models": layouts}), app.ConfigRecord({"bytes": bytes(8)})
    with pytest.raises(FedekdError, match="a message cannot be read"):
        wire.from_records(app.RecordDict({"words": words, "piece 0": piece}))


def test_broken_records_are_one_clear_error():
    app = pytest.importorskip("flwr.app", reason="pip install 'fedekd[flower]'")
    for broken in ({"bytes": "text"}, {"bytes": 3}, {}):
        records = wire.to_records(payload())
        records["piece 0"] = app.ConfigRecord(broken)
        with pytest.raises(FedekdError, match="a message cannot be read"):
            wire.from_records(records)
    with pytest.raises(FedekdError, match="a message cannot be read"):
        wire.from_records(app.RecordDict({}))


def test_size_counts_models_and_words():
    packed, _ = wire.pack(model(1), "none")
    assert Payload({}, {"proxy": packed}).size == 4 * (40 * 30 + 7) + 8 + len("{}") + len(
        '[["proxy","none",[["w","float32",[40,30]],["b","float32",[7]],["count","int64",[]]],{}]]'
    )
