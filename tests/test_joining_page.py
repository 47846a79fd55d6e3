"""docs/make_joining.py: rivals with other configurations than the study's stand in the table of tuned rivals alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedekd.runs.alone import is_menu
from fedekd.runs.transfer import analyse

DOCS = Path(__file__).parents[1] / "docs"
CONFIGURED = "ditto (lam=3.0)"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import joining_records
    import make_joining

    return joining_records, make_joining


@pytest.fixture
def tenth(scripts):
    """A tenth of OrganAMNIST, as the study ran it."""
    return [
        replace(one, found=one.records)
        for one in scripts[0].settings()
        if (one.dataset, one.fraction, one.clients) == ("organamnist", 0.1, 6)
    ]


def configured(setting, more):
    """With ditto once more, so much better on every seed."""
    added = copy.deepcopy([r for r in setting.records if r["label"] == "ditto"])
    for r in added:
        r.update(label=CONFIGURED, key=f"{r['key']} again", avg_delta=r["avg_delta"] + more)
    return replace(setting, found=[*setting.found, *added])


def test_a_rivals_other_configuration_stands_in_the_table_of_the_tuned_alone(scripts, tenth):
    records, page = scripts
    more = [configured(one, 0.001) for one in tenth]
    assert page.rivals(more) == page.rivals(tenth)
    before, after = (records.Tuned(some).table() for some in (tenth, more))
    changed = {new for old, new in zip(before, after, strict=True) if old != new}
    (line,) = changed
    assert line.startswith("| ditto |")
    for one in more:
        assert CONFIGURED not in one.by
        assert CONFIGURED not in one.taken_apart
        assert np.allclose(one.lead(CONFIGURED), np.array(one.lead("ditto")) - 0.001)
        assert records.with_interval(one.lead(CONFIGURED)) in line


def test_what_is_said_of_chosen_configurations_follows_the_records(scripts, tenth):
    records, page = scripts
    assert records.Tuned(tenth).said() == "The configurations that were chosen have not been run on seeds 0 to 4."
    better = [configured(one, 0.05) for one in tenth]
    said = records.Tuned(better).said()
    assert "Of these, 2 were run on seeds 0 to 4: 0 are behind" in said
    assert "ditto (lam=3.0) at α=0.5 is clearly ahead" in said
    assert said.endswith("A dash: the chosen one has not been run on seeds 0 to 4.")
    assert "higher mean than every rival in all 2." in page.said(tenth)
    (said, behind) = page.said(better).split("Where its mean is not the highest:")
    assert "higher mean than every rival in 0 of 2." in said
    assert behind.strip().startswith("- `ditto (lam=3.0)` has the highest mean on")


def test_a_method_that_gives_what_its_twin_gives_helps_nobody_against_it(scripts, tenth):
    _, page = scripts
    (one, _) = tenth
    assert page.judged_against_twins(one)["second-opinion"]["helped"] > 0
    same = [r for r in one.found if r["label"] not in ("second-opinion@alone", "fedekd")]
    twins = [copy.deepcopy(r) for r in one.found if r["label"] == "second-opinion"]
    for r in twins:
        r.update(label="second-opinion@alone", method="second-opinion@alone", key=f"{r['key']} twin")
    found = page.judged_against_twins(replace(one, found=[*same, *twins]))
    assert found["second-opinion"].total() == 30
    assert not found["second-opinion"]["helped"] + found["second-opinion"]["harmed"]
    assert "fedekd" not in found


def test_what_metrics_says_of_choosing_by_loss_follows_the_records(scripts):
    """How much larger gains are than where the metric chooses; it is the same for all methods of a setting."""
    images, hospitals = [], 0.0
    for one in scripts[0].settings():
        if one.records[0]["task"] == "regression":
            continue
        own = [r for r in one.records if is_menu(r["label"]) or f"{r['label']}@alone" in one.by]
        loss, metric = (analyse(own, chosen_by=by)[0].summary["gain"]["mean"] for by in ("loss", "metric"))
        larger = loss - metric
        if one.dataset == "heart":
            hospitals = 100 * larger
        else:
            images.append((100 * larger, one.alpha))
    smaller = [alpha for larger, alpha in images if larger < 0]
    said = (
        f"In the {len(images)} image settings of `results/joining`, trained for longer, gains are larger by up to "
        f"{max(images)[0]:.1f} points in {len(images) - len(smaller)} and smaller by up to {-min(images)[0]:.1f} in "
        f"{len(smaller)} ({smaller.count(0.5)} of them at α = 0.5); on `heart` they are the same."
    )
    assert abs(hospitals) < 0.05
    assert said in " ".join((DOCS / "metrics.md").read_text(encoding="utf-8").split())


def test_other_configurations_that_ran_with_few_rows_everywhere_are_listed_with_their_mean_distance(scripts, tenth):
    records, _ = scripts
    table = records.Tuned([configured(one, 0.001) for one in tenth]).with_few_rows()
    before = 100 * np.mean([one.lead("ditto") for one in tenth])
    assert table[2:] == [f"| {CONFIGURED} | {before:+.2f} | {before - 0.1:+.2f} |"]
    elsewhere = [configured(tenth[0], 0.001), *tenth[1:]]
    assert len(records.Tuned(elsewhere).with_few_rows()) == 2
