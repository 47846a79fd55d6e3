"""What a study finds: figures that can be worked out by hand, and the committed records of the paper's study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from fedekd import metrics
from fedekd.runs.findings import Finding, findings, headline, legend, losses, not_known, told
from fedekd.runs.results import load
from made_records import make_record as made

HOME = Path(__file__).parents[2]


def study(
    deltas: dict[str, float], *, seeds: int = 4, alphas: tuple[float, ...] = (0.1, 0.5), metric: str = "accuracy"
) -> list[dict]:
    """Each method's Δ, a little more on later seeds and at a larger alpha; the same for every client."""
    local = 0.5 if metric == "accuracy" else 5.0
    records = []
    for method, delta in {"local": 0.0, **deltas}.items():
        for alpha in alphas:
            for seed in range(seeds):
                more = (seed / 1000 + alpha / 100) if delta else 0.0
                one = made(method, [delta + more] * 3, local=local, metric=metric, seed=seed)
                one |= {"alpha": alpha, "key": f"{method} {alpha} {seed}"}
                if method.startswith("local") or "@alone" in method:
                    one |= {"bytes_up": 0, "bytes_down": 0}
                records.append(one)
    return records


def of(records: list[dict], label: str = "fedekd") -> Finding:
    return next(one for one in findings(records) if one.label == label)


def test_a_mean_is_over_splits_and_its_interval_over_seeds():
    one = of(study({"fedekd": 0.02}))
    by_seed = [0.02 + seed / 1000 + 0.003 for seed in range(4)]
    assert one.parts["delta"].mean == pytest.approx(fmean(by_seed))
    assert one.parts["delta"].interval == pytest.approx(metrics.paired_interval(by_seed))
    assert (one.parts["delta"].seeds, one.parts["delta"].alphas, one.direction("delta")) == (4, (0.1, 0.5), 1)
    assert "fedekd is better than plain Local, +2.45 points (" in one.sentence()


def test_federation_is_told_from_the_recipe_and_from_what_a_site_has_alone():
    deltas = {"fedekd": 0.02, "fedekd@alone": 0.015, "local-smooth": 0.04, "fedekd-half": 0.03}
    one = of(study(deltas))
    means = {part: round(found.mean, 6) for part, found in one.parts.items()}
    assert means["recipe"] == pytest.approx(0.015 + 0.0045)
    assert means["federation"] == pytest.approx(0.005)
    assert means["delta"] == pytest.approx(means["recipe"] + means["federation"])
    assert means["smooth"] == pytest.approx(0.04 + 0.0045)
    assert means["gate"] == pytest.approx(-0.01)
    assert one.direction("gate") == -1
    assert "Its gate is worse than half the λ, −1.00 (" in one.sentence()
    assert one.wanted == ()


def test_what_was_not_run_is_not_known_and_says_so():
    found = findings(study({"fedekd": 0.02, "fedavg": -0.02}))
    assert {part for one in found for part in one.parts} == {"delta"}  # gain over plain Local would be Δ again
    assert found[0].figure("gain") == "–"
    assert not_known(found[:1]) == [
        "how much of this is federation, or what a site could have reached alone, is not known on digits: "
        "fedekd@alone and local-smooth were not run there"
    ]
    assert headline(found[1:]) == "fedavg is not clearly better than plain Local on digits"
    assert headline(found[:1]) == "fedekd is clearly better than plain Local on digits"
    assert losses(found[1:]) == "It is clearly worse than plain Local on digits"
    assert losses(found[:1]) == ""


def test_controls_of_some_splits_say_which():
    records = study({"fedekd": 0.02, "fedekd@alone": 0.01})
    kept = [r for r in records if r["method"] != "fedekd@alone" or r["alpha"] == 0.5]
    assert of(kept).figure("federation").endswith(", α = 0.5 only)")


def test_one_seed_is_no_finding():
    one = of(study({"fedekd": 0.02}, seeds=1))
    assert one.direction("delta") == 0
    assert one.figure("delta") == "+2.30 (one seed)"
    assert "makes no clear difference to plain Local, +2.30 points (one seed)" in one.sentence()


def test_of_an_error_less_is_better():
    one = of(study({"fedekd": -0.5}, metric="rmse"))
    assert one.direction("delta") == 1
    assert "fedekd is better than plain Local, −0.4955 RMSE (−0.49" in one.sentence()


def test_methods_are_told_with_the_papers_first():
    lines = told(findings(study({"fedavg": -0.02, "fedekd": 0.02})))
    assert [line.split()[0] for line in lines if line[0] != " "] == ["fedekd", "fedavg"]
    assert lines[1].startswith("  digits: fedekd is better than plain Local")
    assert told([]) == []


# --- the paper's study -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paper():
    shown = ("fedekd", "fedekd-half", "fedekd@alone", "local", "local-smooth", "local-smooth-tenth", "fml@alone")
    return [r for r in load(HOME / "results" / "paper").records if r["label"] in shown]


def test_the_papers_records_hold_the_controls(paper):
    found = {one.dataset: one for one in findings(paper) if one.label == "fedekd"}
    one = found["organamnist"]
    for part, label in (("delta", "fedekd"), ("smooth", "local-smooth"), ("recipe", "fedekd@alone")):
        own = [r["avg_delta"] for r in paper if (r["dataset"], r["label"]) == ("organamnist", label)]
        assert len(own) == 30
        assert one.parts[part].mean == pytest.approx(fmean(own), abs=1e-9)
    assert one.parts["federation"].mean == pytest.approx(one.parts["delta"].mean - one.parts["recipe"].mean)
    assert one.direction("delta") == one.direction("federation") == one.direction("smooth") == 1
    assert one.parts["gain"].mean < one.parts["federation"].mean


def test_on_one_dataset_a_method_may_beat_plain_local_and_not_the_best_alone():
    one = of(study({"fedekd": 0.02, "local-smooth": 0.04}))
    assert headline([one]) == "fedekd is clearly better than plain Local and the best a site can do alone on digits"
    unclear = replace(one, parts={**one.parts, "gain": replace(one.parts["gain"], interval=(-0.01, 0.01))})
    words = "fedekd is clearly better than plain Local on digits, but not than the best a site can do alone"
    assert headline([unclear]) == words
    nothing = of(study({"fedekd": 0.02, "fedekd@alone": 0.0}))
    assert "the recipe without exchange 0.00 (0.00 to 0.00)." in nothing.sentence()


def test_a_legend_explains_what_the_table_has_and_no_more():
    assert legend(("delta",)).endswith("paired by seed. Δ: the method minus plain Local.")
    assert all(part in legend() for part in ("recipe", "federation", "smoothed alone", "gain", "over half the λ"))
