"""What the metrics are, and how they are written: shares in percent and their Δ in points, others as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GOOD, BAD, SAME = "#0079c0", "#c75100", "dim"
"""The page's blue and orange, in shades that can be read on black and on white; for terminals and notebooks."""
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Metric:
    title: str
    task: str
    higher_is_better: bool
    share: bool
    """Whether it is a share, which is written in percent."""


METRICS = {
    "accuracy": Metric("accuracy", "classification", higher_is_better=True, share=True),
    "balanced_accuracy": Metric("balanced accuracy", "classification", higher_is_better=True, share=True),
    "macro_f1": Metric("macro F1", "classification", higher_is_better=True, share=True),
    "auroc": Metric("AUROC", "classification", higher_is_better=True, share=True),
    "nll": Metric("NLL", "classification", higher_is_better=False, share=False),
    "ece": Metric("calibration error", "classification", higher_is_better=False, share=True),
    "rmse": Metric("RMSE", "regression", higher_is_better=False, share=False),
    "mae": Metric("MAE", "regression", higher_is_better=False, share=False),
    "r2": Metric("R²", "regression", higher_is_better=True, share=False),
}
"""Of each task, the first is the one that Δ is taken in unless another is asked for."""


def usual_metric(task: str) -> str:
    return next(name for name, about in METRICS.items() if about.task == task)


def describe(metric: str) -> Metric:
    """What is known of a metric; one that a file of another version names counts as an error."""
    return METRICS.get(metric) or Metric(metric.upper(), "", higher_is_better=False, share=False)


@dataclass(frozen=True)
class Unit:
    """How one metric is written, the same in every cell of a report."""

    metric: str
    decimals: int

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Unit:
        """One decimal for shares; for others as many as give the typical value four digits."""
        records = list(records)
        metric = records[0]["metric"] if records else "accuracy"
        if describe(metric).share:
            return cls(metric, 1)
        values = sorted(abs(c["local"]) for r in records for c in r["clients"] if math.isfinite(c["local"]))
        typical = values[len(values) // 2] if values else 1.0
        return cls(metric, max(3 - math.floor(math.log10(typical or 1.0)), 0))

    @property
    def higher_is_better(self) -> bool:
        return describe(self.metric).higher_is_better

    @property
    def percent(self) -> bool:
        """Whether values are in percent and differences in points."""
        return describe(self.metric).share

    @property
    def name(self) -> str:
        return describe(self.metric).title

    @property
    def titled(self) -> str:
        """The name, and that it is in percent where it is."""
        return f"{self.name} in %" if self.percent else self.name

    @property
    def tail(self) -> str:
        """The percentile of Δ that looks to the harmed side."""
        return "P10" if self.higher_is_better else "P90"

    def _text(self, x: float, sign: str = "") -> str:
        if math.isnan(x) and (self.percent or self.higher_is_better):
            return "n/a"  # not defined on a client's test rows; an error that is not a number is a model that diverged
        x = 100 * x if self.percent else x
        extreme = abs(x) >= 1e7 or (self.decimals > 7 and x != 0)
        return f"{x:{sign}.3e}" if extreme else f"{x:{sign}.{min(self.decimals, 7)}f}"

    def value(self, x: float) -> str:
        return _true_minus(self._text(x))

    def delta(self, x: float) -> str:
        """A difference with its sign; one that is not zero never reads as zero."""
        if abs(x) < 1e-12:
            return self._text(0.0)
        text = self._text(x, "+")
        return _true_minus(text if math.isnan(x) or float(text) else f"{100 * x if self.percent else x:+.1g}")

    def amount(self, x: float) -> str:
        """A difference without its sign, with its unit."""
        return self.delta(abs(x)).lstrip("+") + (" points" if self.percent else "")

    def harm(self, delta: float) -> float:
        """Δ with its sign changed where needed, so that positive is harm whatever the metric."""
        return -delta if self.higher_is_better else delta

    def direction(self, interval: tuple[float, float] | None) -> int:
        """1 where the whole interval of a Δ is on the better side of zero, -1 on the worse, 0 otherwise."""
        low, high = sorted(self.harm(x) for x in interval or (0.0, 0.0))
        return int(high < 0) - int(low > 0)

    def style(self, delta: float) -> str:
        harm = self.harm(delta)
        return SAME if abs(harm) < 1e-12 else BAD if not harm < 0 else GOOD


def _true_minus(number: str) -> str:
    return f"−{number[1:]}" if number.startswith("-") else number


def volume(nbytes: float) -> str:
    """Bytes in decimal units: 812 B, 1.2 MB."""
    power = next((p for p in range(4) if nbytes < 999.5 * 1000**p), 4)
    number, unit = nbytes / 1000**power, ("B", "kB", "MB", "GB", "TB")[power]
    return f"{number:.1f} {unit}" if power and number < 99.5 else f"{number:.0f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def blocks(values: Iterable[float]) -> str:
    """A histogram as one word of eight heights; empty bins stay blank."""
    values = list(values)
    top = max(values, default=0) or 1
    return "".join(BLOCKS[min(int(8 * v / top), 7)] if v > 0 else " " for v in values)
