"""Verdicts: no more false alarms than promised, and the same as textbook tests where there are any."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedekd import verdicts
from fedekd.runs.row_results import compared
from fedekd.scores import SCORES
from fedekd.significance import holm, mcnemar, score_interval
from fedekd.verdicts import Comparison, judge, mean_interval, root_mean_square

FEDERATIONS, CLIENTS = 400, 6


def discordant(rng, rows: int, rate: float, better: float = 0.5) -> Comparison:
    """Two models of 80 % that disagree in a share of rows; ``better`` of those are right with the federation alone."""
    alone = (rng.random(rows) < 0.8).astype(float)
    joined, differ, won = alone.copy(), rng.random(rows) < rate, rng.random(rows) < better
    joined[differ], alone[differ] = won[differ], ~won[differ]
    return Comparison(joined[None], alone[None])


def alarms(make, federations: int = FEDERATIONS) -> float:
    """The share of federations in which any client is called helped or harmed."""
    return np.mean([any(v.state in ("helped", "harmed") for v in judge(make())) for _ in range(federations)])


def at_most(rate: float, share: float, federations: int = FEDERATIONS) -> bool:
    """Whether a share that is seen is what a true rate may show (99.9 %)."""
    return share <= stats.binom.ppf(0.999, federations, rate) / federations


@pytest.mark.parametrize("rows", [30, 100, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_false_alarms_over_all_clients(rows, rate):
    rng = np.random.default_rng(rows)
    share = alarms(lambda: [discordant(rng, rows, rate) for _ in range(CLIENTS)])
    assert at_most(0.05, share), f"{share:.1%} false alarms"


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_false_alarms_over_seeds(seeds, monkeypatch):
    """Training seeds that differ by chance, on rows that stay."""
    monkeypatch.setattr(verdicts, "DRAWS", 200)
    rng = np.random.default_rng(seeds)

    def client():
        ease = rng.normal(1.0, 1.0, 100)
        runs = [[(ease + rng.normal(0, 0.2) + rng.normal(0, 0.5, 100) > 0) for _ in range(seeds)] for _ in "ab"]
        return Comparison(np.array(runs[0], float), np.array(runs[1], float))

    assert at_most(0.05, alarms(lambda: [client() for _ in range(CLIENTS)], 200), 200)


def test_steady_clients_do_not_vouch_for_one_whose_training_varies():
    """How much it varies is known from its own two seeds, badly: theirs would make its interval a third as wide."""
    alone = (np.random.default_rng(1).random((2, 2000)) < 0.7).astype(float)
    alone[1] = alone[0]
    joined, wrong = alone.copy(), np.flatnonzero(alone[0] == 0)
    joined[0, wrong[:120]], joined[1, wrong[:60]] = 1.0, 1.0
    one, steady = Comparison(joined, alone), Comparison(alone, alone)
    by_itself, among = judge([one])[0], judge([one] + 17 * [steady])[0]
    assert (among.low, among.high) == (by_itself.low, by_itself.high)
    assert among.state == "undecided"


@pytest.mark.parametrize("rows", [30, 100])
def test_false_alarms_of_errors(rows, monkeypatch):
    """Heavy tails, and a swap test of few draws."""
    monkeypatch.setattr(verdicts, "DRAWS", 400)
    rng = np.random.default_rng(rows)

    def client():
        shared = rng.standard_t(3, rows)
        a, b = (shared + 0.5 * rng.standard_t(3, rows) for _ in "ab")
        return Comparison(a[None], b[None], root_mean_square, higher_is_better=False)

    assert at_most(0.05, alarms(lambda: [client() for _ in range(CLIENTS)], 200), 200)


def test_false_alarms_where_one_model_is_surer(monkeypatch):
    """As good in log-likelihood, which for the surer model is made of few large losses; some rows do not show them."""
    monkeypatch.setattr(verdicts, "DRAWS", 300)
    rng = np.random.default_rng(7)

    def client():
        target = rng.random(50) < 0.5
        logits = [1.5 * (target - 0.5) + rng.normal(0, 1, 50) for _ in "ab"]
        chances = [1 / (1 + np.exp(-scale * z)) for scale, z in zip((0.4, 3.28), logits, strict=True)]
        rows = [np.column_stack([target, 1 - p, p])[None] for p in chances]
        return Comparison(*rows, SCORES["nll"].measure, higher_is_better=False)

    means = [SCORES["nll"].of(np.concatenate([client().joined[0] for _ in range(400)]))]
    means.append(SCORES["nll"].of(np.concatenate([client().alone[0] for _ in range(400)])))
    assert means[0] == pytest.approx(means[1], rel=0.03)
    assert at_most(0.05, alarms(lambda: [client() for _ in range(CLIENTS)], 60), 60)


def test_false_alarms_of_grouped_rows(monkeypatch):
    """Five scans of each patient that are right or wrong together: as independent rows they would cry wolf."""
    monkeypatch.setattr(verdicts, "DRAWS", 200)
    rng = np.random.default_rng(5)

    def client(grouped: bool):
        one = discordant(rng, 40, 0.3)
        joined, alone = (np.repeat(a, 5, axis=1) for a in (one.joined, one.alone))
        return Comparison(joined, alone, groups=np.repeat(np.arange(40), 5) if grouped else None)

    assert at_most(0.05, alarms(lambda: [client(True) for _ in range(3)], 80), 80)
    assert alarms(lambda: [client(False) for _ in range(3)], 80) > 0.3


@pytest.mark.parametrize(("rows", "gain", "least"), [(100, 0.3, 0.8), (1000, 0.06, 0.8)])
def test_what_is_clear_is_seen(rows, gain, least):
    """Power: differences a little above what is said to be detectable."""
    rng = np.random.default_rng(1)
    rate = gain + 0.05
    better = (1 + gain / rate) / 2
    found = [judge([discordant(rng, rows, rate, better) for _ in range(CLIENTS)]) for _ in range(50)]
    flat = [v for some in found for v in some]
    assert np.mean([v.state == "helped" for v in flat]) > least
    assert np.median([v.detectable for v in flat]) < gain


@pytest.mark.parametrize(("rows", "chance"), [(100, 0.05), (300, 0.01), (1000, 0.2)])
@pytest.mark.parametrize("size", [1, 12])
def test_what_is_said_to_be_detectable_is_seen_four_times_in_five(rows, chance, size):
    """And the margin on as many rows as are said to be needed."""
    rng = np.random.default_rng(rows)

    def seen(rows: int, gain: float) -> float:
        counts = rng.multinomial(rows, [chance / 2 + gain, chance / 2, 1 - chance - gain], 100)
        return np.mean([won > lost and mcnemar(won, lost) * size < 0.05 for won, lost, _ in counts])

    def models() -> list[Comparison]:
        return [discordant(rng, rows, chance) for _ in range(size)]

    judged = [judge(models())[0] for _ in range(40)]
    assert 0.7 <= np.mean([seen(rows, one.detectable) for one in judged]) <= 0.95
    assert 0.65 <= np.mean([seen(one.rows_needed, one.margin) for one in judged if one.rows_needed > rows]) <= 0.97


def test_more_rows_do_not_make_up_for_few_seeds():
    rng = np.random.default_rng(3)
    alone = (rng.random((2, 400)) < 0.8).astype(float)
    steady, joined = np.repeat(alone[:1], 2, axis=0), alone.copy()
    joined[0, :90], joined[1, :90] = 1.0, 0.0  # one training is far better, the other far worse
    lucky, same = judge([Comparison(joined, alone)])[0], judge([Comparison(steady, steady)])[0]
    assert (lucky.state, lucky.rows_needed) == ("undecided", None)
    assert lucky.low == -1.0
    assert math.isinf(lucky.detectable)
    assert same.detectable < 0.05
    assert same.rows_needed == 400


def test_the_power_that_is_documented_is_what_the_command_finds():
    made = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "make_power.py"))
    text = made["PAGE"].read_text(encoding="utf-8")
    assert made["page"](text) == text


def test_the_command_that_finds_the_limits_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs")
    import make_limits

    monkeypatch.setattr(make_limits, "FEDERATIONS", 1)
    monkeypatch.setattr(make_limits, "DRAWS", 20)
    monkeypatch.setattr(make_limits, "TRIALS", 5)
    monkeypatch.setattr(verdicts, "DRAWS", 20)
    make_limits.main()
    assert len(capsys.readouterr().out.splitlines()) == 13


def test_mcnemar_by_hand():
    assert mcnemar(0, 0) == mcnemar(7, 7) == 1.0
    assert mcnemar(5, 0) == pytest.approx(0.5**5)
    assert mcnemar(1, 9) == mcnemar(9, 1)
    exact = stats.binomtest(3, 15).pvalue
    assert mcnemar(3, 12) == pytest.approx(exact - stats.binom.pmf(3, 15, 0.5))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_swap_test_is_mcnemars_on_single_rows():
    """A group for each row asks for the swap test, whose mid-p value McNemar's is in closed form."""
    rng = np.random.default_rng(2)
    one = discordant(rng, 60, 0.3, 0.8)
    grouped = Comparison(one.joined, one.alone, groups=np.arange(60))
    exact, drawn = judge([one])[0], judge([grouped])[0]
    assert drawn.difference == exact.difference
    assert drawn.p == pytest.approx(exact.p, abs=0.02)
    assert drawn.low == pytest.approx(exact.low, abs=0.04)


def test_equal_models_are_equivalent_where_rows_suffice():
    rows = np.ones((1, 500))
    few, many = judge([Comparison(rows[:, :30], rows[:, :30])])[0], judge([Comparison(rows, rows)])[0]
    assert (few.state, many.state) == ("undecided", "equivalent")
    assert few.difference == 0.0
    assert few.detectable > few.margin > 0
    assert few.rows_needed > 30


@pytest.mark.parametrize("rows", [60, 97, 120, 150, 200, 400, 1000])
def test_equivalent_is_rarely_wrong(rows):
    """The truth is the margin itself, and all rows that change are won: of a hundred, often not one does."""
    won = np.arange(min(rows, 60) + 1)
    inside = [low >= -0.02 and high <= 0.02 for low, high in (score_interval(int(k), 0, rows) for k in won)]
    assert stats.binom.pmf(won, rows, 0.02)[inside].sum() <= 0.05


@pytest.mark.parametrize(
    ("rows", "won", "lost"), [(20, 0.1, 0.0), (100, 0.02, 0.0), (100, 0.1, 0.1), (200, 0.15, 0.05)]
)
def test_the_interval_of_a_client_holds_the_true_difference_as_often_as_is_said(rows, won, lost):
    """Exactly, over all that could be counted."""
    most = min(rows, 70)
    counts = [(w, k) for w in range(most + 1) for k in range(min(rows - w, most) + 1 if lost else 1)]
    chances = stats.multinomial.pmf([(w, k, rows - w - k) for w, k in counts], rows, [won, lost, 1 - won - lost])
    held = [low <= won - lost <= high for low, high in (score_interval(w, k, rows) for w, k in counts)]
    assert 0.93 <= chances[held].sum() <= 0.999


def test_the_interval_of_published_data():
    """Airway hyper-responsiveness of 21 children, in Fagerland, Lydersen and Laake (2014): −0.517 to −0.026."""
    assert score_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert score_interval(5, 0, 5) == pytest.approx((0.131, 1.0), abs=1e-3)
    assert score_interval(0, 5, 5) == pytest.approx((-1.0, -0.131), abs=1e-3)


def test_few_groups_are_not_equivalent_because_no_row_changed():
    """Ten patients with fifty scans each are ten patients."""
    rows = np.ones((1, 500))
    for groups, state in ((10, "undecided"), (500, "equivalent")):
        assert judge([Comparison(rows, rows, groups=np.arange(500) % groups)])[0].state == state
    few = judge([Comparison(rows, rows, groups=np.arange(500) % 4)])[0]
    assert (few.state, few.reason) == ("undecided", "only 4 groups of test rows")
    unequal = np.minimum(np.arange(500), 300)  # one patient has 200 of the rows
    assert judge([Comparison(rows, rows, groups=unequal)])[0].state == "undecided"


@pytest.mark.parametrize("metric", ["auroc", "balanced_accuracy", "macro_f1"])
def test_a_few_rows_of_a_rare_class_are_not_equivalent_because_both_models_have_them_right(metric):
    """Where classes count alike, one to four ill patients that both models find say little of the ill."""
    sick = np.arange(1000) < 5
    chance = np.where(sick, 0.999, np.random.default_rng(0).random(1000) / 2)

    def verdict(target, groups=None):
        rows = np.column_stack([target, 1 - chance, chance])
        return judge([compared([rows], [rows], metric, groups)])[0]

    for few in (1, 4):
        found = verdict(np.arange(1000) < few)
        assert found.state == "undecided"
        assert found.reason.startswith(f"only {few} test row")
    patients = np.where(sick, 0, np.arange(1000))
    assert verdict(sick, patients).reason.startswith("only 1 group of other classes than the commonest")
    assert verdict(sick).state == "equivalent"


@pytest.mark.parametrize("groups", [8, 15])
def test_the_interval_of_few_groups_holds_the_true_difference(groups, monkeypatch):
    """A tenth of the patients gain, so that in some draws none does."""
    monkeypatch.setattr(verdicts, "DRAWS", 100)
    rng, held = np.random.default_rng(groups), []
    for _ in range(200):
        gains = np.repeat(rng.random(groups) < 0.1, 3).astype(float)
        (found,) = judge([Comparison(gains[None], np.zeros((1, 3 * groups)), groups=np.repeat(np.arange(groups), 3))])
        held.append(found.low <= 0.1 <= found.high)
    assert np.mean(held) >= 0.93


def test_answers_that_agree_on_few_rows_are_not_equivalent_in_any_share():
    rng = np.random.default_rng(5)
    target = rng.integers(0, 2, 40)
    sure = np.column_stack([target, 1 - target, target])[None].astype(float)
    for name in ("macro_f1", "balanced_accuracy", "auroc"):
        (few,) = judge([compared([sure[0]], [sure[0]], name)])
        (many,) = judge([compared([np.tile(sure[0], (10, 1))], [np.tile(sure[0], (10, 1))], name)])
        assert (few.state, many.state) == ("undecided", "equivalent"), name


def test_the_sign_of_an_error_is_the_other_way():
    rng = np.random.default_rng(3)
    large, small = (s * rng.normal(size=(1, 80)) for s in (3.0, 1.0))
    verdict = judge([Comparison(small, large, root_mean_square, higher_is_better=False)])[0]
    assert verdict.state == "helped"
    assert verdict.difference < 0
    assert verdict.high < 0
    assert judge([Comparison(large, small, root_mean_square, higher_is_better=False)])[0].state == "harmed"


def test_what_cannot_be_said_is_undecided():
    few = judge([Comparison(np.ones((1, 4)), np.zeros((1, 4)))])[0]
    assert (few.state, few.reason) == ("undecided", "only 4 test rows")
    one_class = np.column_stack([np.zeros(40), np.full((40, 2), 0.5)])[None]
    score = SCORES["auroc"]
    undefined = judge([Comparison(one_class, one_class, score.measure)])[0]
    assert (undefined.state, undefined.reason) == ("undecided", "the metric is not defined on these test rows")


def test_any_metric_can_be_judged():
    rng = np.random.default_rng(4)
    target = rng.integers(0, 2, 120)
    sharp, blunt = (np.clip(0.5 + s * (target - 0.5) + rng.normal(0, 0.3, 120), 0.01, 0.99) for s in (1.0, 0.1))
    rows = [np.column_stack([target, 1 - p, p])[None] for p in (sharp, blunt)]
    score = SCORES["auroc"]
    verdict = judge([Comparison(*rows, score.measure)])[0]
    assert verdict.state == "helped"
    assert verdict.low < verdict.difference < verdict.high
    assert verdict == judge([Comparison(*rows, score.measure)])[0], "drawn from a fixed seed"


def test_more_comparisons_make_each_harder():
    rng = np.random.default_rng(6)
    one = discordant(rng, 60, 0.2, 0.95)
    alone, among = judge([one])[0], judge([one, *(discordant(rng, 60, 0.1) for _ in range(99))])[0]
    assert alone.state == "helped"
    assert among.p > alone.p
    assert among.detectable > alone.detectable
    assert (among.low, among.high) == (alone.low, alone.high)


def test_the_interval_keeps_a_width_where_no_row_changes():
    low, high = score_interval(0, 0, 50)
    assert low == -high < 0
    assert math.isclose(high, 1.96**2 / (50 + 1.96**2), rel_tol=1e-3)


def test_the_mean_over_clients_lies_in_its_interval_as_often_as_is_said():
    """Clients of unequal size, one with two rows; the true differences are known."""
    rng = np.random.default_rng(8)
    right, error = [], []
    for _ in range(300):
        shares = [discordant(rng, rows, 0.2, 0.75) for rows in (40, 25, 60, 12)]
        low, high = mean_interval(shares)
        right.append(low <= 0.2 * 0.5 <= high)
        errors = []
        for rows in (23, 10, 13, 2, 30):
            common = 30 * rng.normal(size=rows)
            joined, alone = (np.abs(common + size * rng.normal(size=rows))[None] for size in (40, 50))
            errors.append(Comparison(joined, alone, root_mean_square, higher_is_better=False))
        low, high = mean_interval(errors)
        error.append(low <= math.hypot(30, 40) - math.hypot(30, 50) <= high)
    assert 0.92 <= np.mean(right) <= 0.99
    assert 0.9 <= np.mean(error) <= 0.99


def test_a_single_clients_mean_interval_is_about_its_own():
    one = discordant(np.random.default_rng(9), 80, 0.2, 0.8)
    (verdict,) = judge([one])
    low, high = mean_interval([one])
    assert math.isclose((low + high) / 2, verdict.difference)
    assert math.isclose(high - low, verdict.high - verdict.low, rel_tol=0.05)


def test_no_mean_interval_without_rows():
    one, few = discordant(np.random.default_rng(9), 80, 0.2), Comparison(*np.ones((2, 1, 3)), root_mean_square)
    assert mean_interval([one, None]) is None
    assert mean_interval([]) is None
    assert mean_interval([few]) is None
    assert mean_interval([replace(one, joined=np.vstack([one.joined] * 2))]) is None, "several seeds"
    target = np.column_stack([np.zeros(40), np.full((40, 2), 0.5)])[None]
    undefined = Comparison(target, target, SCORES["auroc"].measure)
    assert mean_interval([one, undefined]) == mean_interval([one]), "as Avg Δ leaves it out"
    assert mean_interval([undefined]) is None
