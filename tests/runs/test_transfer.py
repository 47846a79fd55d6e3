"""Delta taken apart, from records: what is chosen on validation rows, and what the four parts are."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import fedekd
from fedekd.errors import FedekdError
from fedekd.runs import packing, transfer
from fedekd.runs.choosing import Option, best_on_validation, option
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import menu
from made_records import make_record
from tiny import tiny_private, tiny_proxy

CLIENTS, ROWS = 3, 200


def rows_of(right: float, seed: int) -> np.ndarray:
    """Errors of a model that is right in a share of rows, those that are hardest last."""
    order = np.random.default_rng(seed).permutation(ROWS)
    errors = np.ones(ROWS, int)
    errors[order[: round(right * ROWS)]] = 0
    return errors


def record(method: str, accuracy: float, val_loss: float, *, seed: int = 0, n_val: int = 100, split: str = "same"):
    one = make_record(method, [0.0] * CLIENTS, seed=seed)
    for k, client in enumerate(one["clients"]):
        packed = packing.pack(rows_of(accuracy, k))
        client |= {"n_test": ROWS, "n_val": n_val, "value": accuracy, "local": 0.7, "delta": accuracy - 0.7}
        client |= {"val": accuracy, "val_loss": val_loss, "val_error": 0.01, "rows": {"last": packed}}
        client["chosen"] = {"round": 10, "value": accuracy, "val": accuracy, "val_loss": val_loss, "val_error": 0.01}
    return {**one, "partition": {"kind": "dirichlet", "clients": CLIENTS, "seed": 0, "fingerprint": split}}


def study(**more):
    return [
        record("local", 0.7, 0.9, **more),
        record("local-smooth", 0.75, 0.7, **more),
        record("fedekd@alone", 0.72, 0.8, **more),
        record("fedekd", 0.9, 0.5, **more),
    ]


def test_the_four_parts():
    (one,) = analyse(study())
    assert (one.label, one.menu) == ("fedekd", ("local", "local-smooth", "fedekd@alone"))
    for client in one.clients:
        assert client.parts == pytest.approx({"delta": 0.2, "recipe": 0.02, "federation": 0.18, "gain": 0.15})
        assert client.alone[0].label == "local-smooth"
        assert client.verdict.state == "helped"
        assert client.verdict.difference == pytest.approx(0.15)
    assert one.states == {"helped": 3, "harmed": 0, "equivalent": 0, "undecided": 0}
    assert one.summary["gain"]["mean"] == pytest.approx(0.15)
    assert one.summary["federation"]["worst"] == pytest.approx(0.18)


def test_without_twin_or_menu_less_is_said():
    (one,) = analyse([record("local", 0.7, 0.9), record("fedekd", 0.9, 0.5)])
    assert set(one.summary) == {"delta", "gain"}
    assert one.menu == ("local",)
    old = [make_record("local"), make_record("fedekd")]
    for r in old:
        r["partition"] = {"kind": "dirichlet", "clients": 6, "fingerprint": "x"}
    (plain,) = analyse(old)
    assert plain.states == {}
    assert all(client.verdict is None for client in plain.clients)
    assert [client.parts["gain"] for client in plain.clients] == [c["delta"] for c in old[1]["clients"]]


def test_only_the_twins_of_what_is_shown_are_on_the_menu():
    (one,) = analyse([*study(), record("fml@alone", 0.99, 0.1)])
    assert "fml@alone" not in one.menu


def test_a_client_is_one_over_seeds_only_where_its_rows_are():
    held = [r for seed in range(3) for r in study(seed=seed)]
    (one,) = analyse(held)
    assert [client.seeds for client in one.clients] == [(0, 1, 2)] * CLIENTS
    assert one.clients[0].verdict.seeds == 3
    assert one.summary["gain"]["interval"] is not None
    dealt = [r for seed in range(3) for r in study(seed=seed, split=f"split {seed}")]
    (other,) = analyse(dealt)
    assert len(other.clients) == 3 * CLIENTS
    assert {client.verdict.seeds for client in other.clients} == {1}


PLAIN = Option("local", 5, 0.7, 0.8)


@pytest.mark.parametrize(
    ("val", "n_val", "higher", "chosen"),
    [
        (0.81, 100, True, "smooth"),
        (0.8, 100, True, "local"),
        (0.99, 29, True, "local"),  # too few rows to choose by
        (math.nan, 100, True, "local"),
        (0.79, 100, False, "smooth"),
    ],
)
def test_what_is_chosen(val, n_val, higher, chosen):
    assert best_on_validation([PLAIN, Option("smooth", 5, 0.6, val)], n_val, higher).label == chosen


@pytest.mark.parametrize(
    ("loss", "n_val", "chosen"),
    [(0.88, 100, "local"), (0.86, 100, "smooth"), (0.1, 29, "local"), (math.nan, 100, "local")],
)
def test_by_loss_plain_stays_within_one_standard_error(loss, n_val, chosen):
    """Of the lowest loss, and whatever the metric says."""
    plain = Option("local", 5, 0.7, 0.9, 0.9, None, 0.2)
    smooth = Option("smooth", 5, 0.9, 0.5, loss, None, 0.03)
    other = Option("other", 5, 0.9, 0.99, 0.95, None, 0.2)
    assert best_on_validation([plain, smooth, other], n_val, by="loss").label == chosen


def test_the_best_alone_can_be_chosen_by_loss():
    runs = study()
    for client in runs[1]["clients"]:  # smoothed: better in accuracy, worse in loss
        client |= {"val_loss": 2.0}
    (usual,), (by_loss,) = analyse(runs), analyse(runs, chosen_by="loss")
    assert [one.clients[0].alone[0].label for one in (usual, by_loss)] == ["local-smooth", "fedekd@alone"]
    assert by_loss.clients[0].parts["gain"] == pytest.approx(0.18)
    assert ["by loss, unless" in menu(one) for one in (usual, by_loss)] == [False, True]


def test_the_test_rows_do_not_choose():
    """A better test value at a worse validation value stays where it is."""
    assert best_on_validation([PLAIN, Option("lucky", 5, 0.99, 0.7)], 100).label == "local"


@pytest.mark.parametrize(("then", "n_val", "at"), [(0.9, 100, 4), (0.72, 100, 10), (0.9, 29, 10)])
def test_an_earlier_round_must_be_clearly_better(then, n_val, at):
    one = record("local", 0.7, 0.9, n_val=n_val)
    client = one["clients"][0]
    client["chosen"] = {"round": 4, "value": 0.6, "val": then, "val_loss": 0.1, "val_error": 0.01}
    client["rows"]["chosen"] = packing.pack(rows_of(0.6, 0))
    found = option(one, 0)
    assert (found.round, found.value) == (at, 0.6 if at == 4 else 0.7)
    assert found.rows.mean() == pytest.approx(found.value)


def test_rows_are_packed_and_come_back():
    errors = np.array([0, 1, 1, 0, 0, 0, 0, 0, 1], np.int32)
    assert packing.unpack(packing.pack(errors), 9, "accuracy").tolist() == (1 - errors).tolist()
    off = np.array([0.5, -2.25], np.float32)
    assert packing.unpack(packing.pack(off), 2, "rmse").tolist() == off.tolist()
    for text, rows in (("####", 3), ("AA==", 9), ("AAAA", 3)):
        with pytest.raises(FedekdError, match="test rows cannot be read"):
            packing.unpack(text, rows, "accuracy")


@pytest.mark.parametrize("dataset", ["digits", "diabetes"])
def test_a_run_tells_all_of_it(dataset, tmp_path):
    names = ["local-smooth", "fedekd", "fedekd@alone", "fedekd@shuffled"]
    given = {"clients": 3, "alpha": 0.5, "rounds": 3, "epochs": 1, "private": tiny_private, "proxy": tiny_proxy}
    result = fedekd.run(dataset, methods=names, out=str(tmp_path), progress=False, **given)
    assert [r["label"] for r in result.records] == ["local", *names]
    for r in result.records:
        for client in r["clients"]:
            rows = packing.unpack(client["rows"]["last"], client["n_test"], r["metric"])
            value = rows.mean() if r["metric"] == "accuracy" else math.sqrt(np.square(rows).mean())
            assert client["value"] == pytest.approx(value, rel=1e-6)
            best = client["chosen"]["round"]
            assert client["curve"]["val_loss"][best - 1] == min(client["curve"]["val_loss"])
            assert client["curve"]["value"][best - 1] == pytest.approx(client["chosen"]["value"], rel=1e-5)
            assert ("chosen" in client["rows"]) == (best != 3)
    (one,) = analyse(result.records)
    assert set(one.summary) == set(transfer.PARTS)
    for client in one.clients:
        assert client.parts["delta"] == pytest.approx(client.parts["recipe"] + client.parts["federation"])
        assert client.verdict.difference == pytest.approx(client.parts["gain"], rel=1e-4, abs=1e-9)
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])["clients"][0]["rows"]


def test_of_equal_entries_the_loss_decides_and_plain_local_stays_where_it_is_as_good() -> None:
    plain, blunt, sharp = (Option(name, 5, 0.0, val, loss) for name, val, loss in (
        ("local", 0.8, 0.9), ("local-smooth", 0.85, 0.7), ("fedekd@alone", 0.85, 0.5)))  # fmt: skip
    for order in ((plain, blunt, sharp), (plain, sharp, blunt)):
        assert best_on_validation(order, 30) is sharp
    as_good = replace(plain, val=0.85)
    assert best_on_validation((as_good, blunt, sharp), 30) is as_good


def test_the_menu_does_not_depend_on_the_order_of_the_records() -> None:
    """Runs side by side end in any order."""
    names = ("fml@alone", "local-smooth", "fedekd", "local-smooth-tenth", "fml", "local", "fedekd@alone")
    for some in (names, names[::-1]):
        (one, *_) = analyse([make_record(name, rows=50) for name in some])
        assert set(one.menu) == {"local", "local-smooth-tenth", "local-smooth", "fedekd@alone", "fml@alone"}
        assert (one.menu[0], *one.menu[-2:]) == ("local", "fedekd@alone", "fml@alone")
