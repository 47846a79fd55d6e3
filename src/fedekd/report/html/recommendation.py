"""Which method a federation should use, and what its sites should do: said for all methods together.

Of many methods that are tried on the same test rows, the best looks better than it is. So "clearly" is at the 5 % level
over all of them (Bonferroni), while the intervals that are shown are each of one comparison by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedekd import metrics
from fedekd.report.html.run_data import RunData
from fedekd.report.html.words import between, signed
from fedekd.runs.transfer import MethodTransfer
from fedekd.runs.verdict_text import STATES, advice_by_client, decided
from fedekd.units import Unit
from fedekd.verdicts import HARMED, LEVEL


def which_method(methods: Sequence[MethodTransfer], unit: Unit) -> list[str]:
    """The method with the best mean gain over the best alone, whether that is clear, and how the others compare."""
    known = [method for method in methods if math.isfinite(method.summary["gain"]["mean"])]
    if not known:
        return []
    best, *others = sorted(known, key=lambda method: unit.harm(method.summary["gain"]["mean"]))
    gain, interval = best.summary["gain"]["mean"], best.summary["gain"]["interval"]
    lower = "" if unit.higher_is_better else "lower is better, "
    alone = "the best alone" if len(best.menu) > 1 else "training alone"
    if interval is None:
        found = best.summary["gain"]["over_rows"]
        sure = f"95 % interval over test rows {between(found, unit)}" if found else ""
        rows = f" ({told})" if (told := (lower + sure).removesuffix(", ")) else ""
        first = (
            f"One seed cannot say which method to use. Here {best.label} has the best mean gain over {alone}: "
            f"{signed(gain, unit)}{rows}."
        )
    else:
        count = len(best.by_seed("gain"))
        sure = f"{lower}95 % interval {between(interval, unit)}, paired over {count} seeds"
        together = f"; over all {len(known)} methods here that may be chance" if unit.direction(interval) > 0 else ""
        if _clearly(interval, count, len(known), unit):
            first = f"Use {best.label}: its mean gain over {alone} is {signed(gain, unit)} ({sure})."
        else:
            first = (
                f"No method is clearly better than training alone: the best mean gain is that of {best.label}, "
                f"{signed(gain, unit)} ({sure}{together})."
            )
    harmed = best.states.get(HARMED, 0)
    lines = [first + (f" {best.label} has {harmed} {STATES[HARMED]}." if harmed else "")]
    pairs = len(known) * len(others) // 2  # any of them could have been the one that looks best
    return [*lines, *(line for other in others if (line := _against(best, other, unit, pairs)))]


def _clearly(interval: tuple[float, float], seeds: int, comparisons: int, unit: Unit) -> bool:
    """Whether a 95 % interval over seeds lies on the good side of zero even where it is one of several."""
    from scipy.special import stdtrit

    each, all_ = (float(stdtrit(seeds - 1, 1 - LEVEL / 2 / count)) for count in (1, comparisons))
    middle, half = (interval[0] + interval[1]) / 2, (interval[1] - interval[0]) / 2 * all_ / each
    return unit.direction((middle - half, middle + half)) > 0


def _against(best: MethodTransfer, other: MethodTransfer, unit: Unit, comparisons: int) -> str:
    """Nothing where both give the same, or the seeds are too few to compare them."""
    ours, theirs = best.by_seed("gain"), other.by_seed("gain")
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    interval = metrics.paired_interval(differences)
    if interval is None or not all(map(math.isfinite, interval)) or not any(differences):
        return ""
    clear = "clearly " if _clearly(interval, len(differences), comparisons, unit) else "not clearly "
    mean = sum(differences) / len(differences)
    return (
        f"{best.label} is {clear}better than {other.label}: {signed(mean, unit)} on average "
        f"(95 % interval {between(interval, unit)})."
    )


def what_sites_should_do(data: RunData) -> str:
    advice = advice_by_client(data.transfer.values(), data.unit)
    if not advice:
        return ""
    runs = len(data.seeds) > 1 and not data.one_split
    noun = ("client-run" if runs else "client") + ("" if len(advice) == 1 else "s")
    return f"Of {len(advice):,} {noun}, {decided(advice.values())}."
