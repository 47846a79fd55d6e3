"""A method of which each client chooses the configuration: by the rule of the best alone, on validation rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedekd.metrics import paired_interval
from fedekd.runs import answers, packing
from fedekd.runs.best_of import best_of
from fedekd.runs.row_results import rows_of
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import best_of as words
from made_records import make_record

ROWS = 200
MENU = ("local", "local-smooth", "local-smooth-quarter")


def run(
    label: str, val: Sequence[float], test: Sequence[float], *, seed: int = 0, n_val: int = 100, **changes: Any
) -> dict[str, Any]:
    """A run whose clients have these accuracies on their validation and test rows."""
    method = label.partition(" (")[0]
    one = make_record(method, [0.0] * len(val), seed=seed, label=label)
    for k, client in enumerate(one["clients"]):
        errors = np.ones(ROWS, int)
        errors[np.random.default_rng(k).permutation(ROWS)[: round(test[k] * ROWS)]] = 0
        client |= {"n_val": n_val, "n_test": ROWS, "local": 0.7, "value": test[k], "delta": test[k] - 0.7}
        client |= {"val": val[k], "val_loss": 1 - val[k], "val_error": 0.05, "rows": {"last": packing.pack(errors)}}
    sent = 0 if method.startswith("local") or "@" in method else 10
    one |= {"key": f"{label} {seed}", "bytes_up": sent, "bytes_down": sent, **changes}
    return {**one, "partition": {"kind": "dirichlet", "clients": len(val), "seed": 0, "fingerprint": "same"}}


def alone(seed: int = 0, n_val: int = 100) -> list[dict[str, Any]]:
    return [run(name, (0.7, 0.7), (0.7, 0.7), seed=seed, n_val=n_val) for name in MENU]


def two(seed: int = 0, n_val: int = 100) -> list[dict[str, Any]]:
    """The first client's validation rows prefer ditto as it is, the second's the other; test rows the opposite."""
    usual = run("ditto", (0.9, 0.8), (0.75, 0.95), seed=seed, n_val=n_val)
    other = run("ditto (lam=3.0)", (0.8, 0.9), (0.95, 0.75), seed=seed, n_val=n_val)
    return [*alone(seed, n_val), usual, other]


def chosen(record: dict[str, Any]) -> list[str]:
    return [client["run"].rpartition(" ")[0] for client in record["clients"]]


def test_each_client_chooses_by_its_validation_rows_and_not_by_its_test_rows():
    (one,) = best_of(two())
    assert (one.method, one.label) == ("ditto", "ditto (best of 2)")
    assert (one.configurations, one.left_out) == (("ditto", "ditto (lam=3.0)"), 0)
    (record,) = one.records
    assert chosen(record) == ["ditto", "ditto (lam=3.0)"]
    assert [client["value"] for client in record["clients"]] == [0.75, 0.75]
    assert (record["avg_delta"], record["mean"]) == pytest.approx((0.05, 0.75))
    assert record["bytes_up"] == 20  # of both: without training both there is no choice
    found = {method.label: method for method in analyse([*two(), record])}[one.label]
    assert set(found.summary) == {"delta", "gain"}
    assert [client.joined[0].value for client in found.clients] == [0.75, 0.75]
    assert [client.joined[0].rows.mean() for client in found.clients] == pytest.approx([0.75, 0.75])


@pytest.mark.parametrize("by", ["metric", "loss"])
@pytest.mark.parametrize(("n_val", "usual"), [(29, 2), (30, 1)])
def test_few_validation_rows_choose_nothing(n_val, usual, by):
    (one,) = best_of(two(n_val=n_val), by)
    assert chosen(one.records[0]).count("ditto") == usual


def test_by_loss_the_default_stays_within_one_standard_error():
    runs = [*alone(), run("ditto", (0.8, 0.8), (0.8, 0.8)), run("ditto (lam=3.0)", (0.84, 0.86), (0.8, 0.8))]
    assert [chosen(best_of(runs, by)[0].records[0]) for by in ("metric", "loss")] == [
        ["ditto (lam=3.0)", "ditto (lam=3.0)"],
        ["ditto", "ditto (lam=3.0)"],
    ]


def test_its_twin_chooses_likewise_where_every_configuration_has_one():
    """Else what is federation is not known: the twin of the default is not the twin of what a client chose."""
    twin = run("ditto@alone", (0.6, 0.7), (0.71, 0.72))
    (without,) = best_of([*two(), twin])
    assert [record["label"] for record in without.records] == ["ditto (best of 2)"]
    runs = [*two(), twin, run("ditto@alone (lam=3.0)", (0.7, 0.6), (0.73, 0.74))]
    (one,) = best_of(runs)
    assert [record["label"] for record in one.records] == ["ditto (best of 2)", "ditto@alone (best of 2)"]
    assert chosen(one.records[1]) == ["ditto@alone (lam=3.0)", "ditto@alone"]
    found = {method.label: method for method in analyse([*runs, *one.records])}[one.label]
    for client, own in zip(found.clients, (0.73, 0.72), strict=True):
        assert client.parts["federation"] == pytest.approx(0.75 - own)
        assert client.parts["recipe"] == pytest.approx(own - 0.7)
    assert one.records[1]["label"] in found.menu


def test_there_are_no_more_configurations_than_the_menu_has_entries():
    """The first by value, not by alphabet; what the twins of other configurations would add to the menu does not
    count."""
    params = {"rounds": 10, "epochs": 2}
    runs = [*alone(), run("ditto", (0.8, 0.8), (0.8, 0.8), params={**params, "lam": 1.0})]
    for lam in (10.0, 5, 3.0, "auto"):
        runs.append(run(f"ditto (lam={lam})", (0.8, 0.8), (0.8, 0.8), params={**params, "lam": lam}))
    (one,) = best_of([*runs, run("ditto@alone (lam=3.0)", (0.7, 0.7), (0.7, 0.7))])
    assert one.configurations == ("ditto", "ditto (lam=3.0)", "ditto (lam=5)")
    assert (one.label, one.left_out) == ("ditto (best of 3)", 2)
    assert "the one of ditto, ditto (lam=3.0), ditto (lam=5) (of 5 that were run) that" in words(one)
    assert best_of([record for record in two() if not record["method"].startswith("local-")]) == []


def test_only_what_can_be_chosen_from_is_offered():
    old = run("ditto (lam=4)", (0.9, 0.9), (0.9, 0.9))
    for client in old["clients"]:
        del client["val"]
    (one,) = best_of([*two(), *two(seed=1), old, run("ditto (lam=5)", (0.9, 0.9), (0.9, 0.9), seed=1)])
    assert (one.configurations, one.left_out) == (("ditto", "ditto (lam=3.0)"), 2)
    assert best_of([record for record in two() if record["label"] != "ditto"]) == []  # no default
    other = {**two()[-1], "params": {"rounds": 10, "epochs": 3}}
    assert best_of([*two()[:-1], other]) == []  # of another table


def test_intervals_and_verdicts_count_it_among_what_is_shown():
    runs = [record for seed in range(3) for record in two(seed)]
    for record, value in zip(runs[4::5], (0.80, 0.82, 0.84), strict=True):
        record["clients"][1] |= {"value": value, "delta": value - 0.7}
    (one,) = best_of(runs)
    plain = [record for record in runs if record["label"] == record["method"]]
    found = {method.label: method for method in analyse([*plain, *one.records])}
    means = [(0.05 + value - 0.7) / 2 for value in (0.80, 0.82, 0.84)]
    assert found[one.label].summary["delta"]["interval"] == pytest.approx(paired_interval(means))
    (before,), both = analyse(plain[:4]), analyse([*plain[:4], one.records[0]])
    least = [min(client.verdict.p for method in some for client in method.clients) for some in ([before], both)]
    assert least[0] > 0
    assert least[1] == pytest.approx(2 * least[0])  # Holm's method is over twice as many comparisons


def test_answers_are_those_of_the_run_that_was_chosen(tmp_path):
    """In metrics of which a record does not hold the test rows."""
    runs = [{**record, "metric": "auroc"} for record in two()]
    for place, record in enumerate(runs):
        for client in record["clients"]:
            del client["rows"]
        answers.write(tmp_path, record["key"], {f"{k}-last": np.full((ROWS, 2), 10.0 * place + k) for k in range(2)})
    (one,) = best_of(runs)
    assert [rows_of(one.records[0], k, tmp_path)[0, 0] for k in range(2)] == [30.0, 41.0]


def test_a_configuration_that_diverged_is_not_chosen():
    runs = two()
    runs[-1]["clients"][1] |= {"val": math.nan, "val_loss": math.nan}
    assert chosen(best_of(runs)[0].records[0]) == ["ditto", "ditto"]
