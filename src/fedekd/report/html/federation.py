"""The page of a federation of real sites: what each made of joining, as far as it shares that, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedekd.report.federation import by_interval, by_loss, cells, verdict, verdicts
from fedekd.report.html.chart import (
    Chart,
    ChartColumn,
    MetricScale,
    Row,
    Spec,
    effect_colour,
    effect_shape,
    lines_of,
    names,
    tooltip,
    zero_line,
)
from fedekd.report.html.section import Block, Cell, Headline, Page, Section, Variants, cell, table
from fedekd.runs.federation_report import FederationReport, SiteRow
from fedekd.units import count, duration, volume
from fedekd.verdicts import HARMED, HELPED

ONCE = "A federation runs once, so nobody knows how it would have ended with another seed."
HOLM = (
    "Clearly: at the 5 % level over all sites that share a verdict (Holm's method). Each compares the method with the "
    "best of what it trained alone, each at the round that its validation rows prefer, on its own test rows, which are "
    "assumed independent unless it named a group."
)
INTERVAL = "Clearly: at the 5 % level over all sites that share their Δ (Holm's method), by intervals over test rows."
OWN = "Each site's own report, on its own disk, has its numbers."
VERDICT = "Colour and ▲ or ▼ mark a clear verdict against the best that the site can do alone, where it shares one. "
SIGN = "Colour and ▲ or ▼ mark what is clear over all sites together. "


def federation_page(report: FederationReport) -> Page:
    scale = MetricScale(report.unit)
    sites: list[Chart | Block] = [*([_deltas(report, scale)] if report.known else []), _table(report, scale)]
    sections = [
        Section("sites", "Did joining help?", sites),
        Section("cost", "Cost and privacy", [Block("settings.html", _groups(report))]),
    ]
    parts = [count(len(report.sites), "site"), f"{count(report.rounds, 'round')} of {report.method}", scale.unit.name]
    hero = Variants((), {"": _headline(report)}, "")
    return Page("Federation: did joining help?", " · ".join(["Federation", *parts]), hero, sections, ())


def _headline(report: FederationReport) -> Headline:
    """By the verdicts that sites share; where none shares one, by the intervals of Δ."""
    if states := Counter(report.states.values()):
        harmed, helped, known, what = states[HARMED], states[HELPED], states.total(), "verdict"
        title, sure = verdicts(report), " ".join([HOLM, *by_loss(report), ONCE])
    else:
        harmed, helped, known, what = report.surely_harmed, report.surely_helped, len(report.known), "Δ"
        title = f"{report.method}: {by_interval(report)}" if known else "No site shares its Δ"
        sure = f"{INTERVAL} {ONCE}" if known else ""
    silent = len(report.sites) - known
    return Headline(
        title,
        [f"No {what} is known of {count(silent, 'site')}. {OWN}"] if silent else [],
        tone="harm" if harmed else "help" if helped else "",
        sure=sure,
        figures=[
            (f"{harmed} of {known}", "sites clearly harmed", "harm" if harmed else ""),
            (f"{helped} of {known}", "sites clearly helped", "help" if helped else ""),
            (volume(report.bytes_up), "sent by the sites", ""),
            (volume(report.bytes_down), "sent to the sites", ""),
            (duration(report.seconds), "in all", ""),
        ],
    )


def _effect(report: FederationReport, site: SiteRow) -> str:
    """By the site's verdict; where it shares Δ alone, by its interval: what may be chance is undecided."""
    name = site.get("name", "?")
    return report.states.get(name) or report.interval_states.get(name, "unknown")


def _rows(report: FederationReport, scale: MetricScale) -> list[Row]:
    """The most harmed site first, those without a Δ last."""
    rows = []
    for site in report.sites:
        told = dict[str, Any](site)
        values = {key: told.get(key) for key in ("local", "value", "delta", "low", "high")}
        shown = {key: None if value is None else scale.factor * value for key, value in values.items()}
        rows.append(
            {
                "site": str(site.get("name", "?")),
                "n": site.get("n"),
                **shown,
                "said": cells(site, scale.unit)[-1],
                "verdict": verdict(report, site),
                "effect": _effect(report, site),
            }
        )
    return sorted(rows, key=lambda row: -scale.unit.harm(row["delta"]) if row["delta"] is not None else float("inf"))


def _deltas(report: FederationReport, scale: MetricScale) -> Chart:
    columns = [
        ChartColumn("site", "site"),
        ChartColumn("local", "alone", scale.value),
        ChartColumn("value", "with the federation", scale.value),
        ChartColumn("said", scale.delta_title),
        *([ChartColumn("verdict", "verdict")] if report.states else []),
        ChartColumn("effect", "effect"),
        ChartColumn("n", "training samples", ","),
    ]
    rows = _rows(report, scale)
    deltas = [row[key] for row in rows for key in ("delta", "low", "high") if row[key] is not None]
    x: Spec = {
        "field": "delta",
        "type": "quantitative",
        "title": scale.ways(scale.delta_title),
        "scale": {**scale.stretched(deltas), "padding": 16},
        "axis": {"tickCount": 5},
    }
    spec: Spec = {
        **lines_of("site", 30),
        "encoding": {"y": names("site", grid=True), "tooltip": tooltip(columns)},
        "layer": [
            zero_line(),
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": effect_colour()},
            },
            {
                "transform": [{"filter": "isValid(datum.delta)"}],
                "mark": {"type": "point", "filled": True, "size": 125, "opacity": 1},
                "encoding": {"x": x, "color": effect_colour(), "shape": effect_shape()},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 12, "fontWeight": 600, "color": "$soft", "aria": False},
                "encoding": {"x": {"value": "width"}, "text": {"field": "said"}},
            },
        ],
    }
    better = "right" if scale.unit.higher_is_better else "left"
    about = (
        f"Each site's result with the federation minus its result alone, on its own test rows; further {better} is "
        f"better. Lines are 95 % intervals over test rows. {VERDICT if report.states else SIGN}"
        '"kept": the site does not share it; "no answer": it was away at the end.'
    )
    return Chart("deltas", "Site by site", about, spec, columns, {"": rows})


def _table(report: FederationReport, scale: MetricScale) -> Block:
    def row(site: SiteRow) -> tuple[list[str], list[Cell]]:
        *first, delta = cells(site, scale.unit)
        effect = _effect(report, site)
        judged = [cell(verdict(report, site))] if report.states else []
        mark = effect if effect in (HELPED, HARMED) else ""
        return [str(site.get("name", "?"))], [*map(cell, first), cell(delta, mark=mark), *judged]

    heads = ["training samples", f"alone, {_unit(scale)}", f"with the federation, {_unit(scale)}", scale.delta_title]
    heads += ["verdict"] if report.states else []
    return table("In figures", ["site"], [("", head) for head in heads], [row(site) for site in report.sites])


def _unit(scale: MetricScale) -> str:
    return "%" if scale.unit.percent else scale.unit.name


def refusals(refused: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Why answers did not count, by visit and site: a visit that failed as a whole was done again."""
    reasons: dict[str, dict[str, int]] = {}
    for one in refused:
        known = reasons.setdefault(f"visit {one['visit'] + 1}, {one['site']}", {})
        known[one["reason"]] = known.get(one["reason"], 0) + 1
    return {
        place: "; ".join(f"{why} ({times} times)" if times > 1 else why for why, times in known.items())
        for place, known in reasons.items()
    }


def _groups(report: FederationReport) -> dict[str, dict[str, str]]:
    return {
        "Federation": {
            "method": report.method,
            "rounds": str(report.rounds),
            "compression": report.compression,
            "combined by": report.combine,
            "from the sites": volume(report.bytes_up),
            "to the sites": volume(report.bytes_down),
            "time": duration(report.seconds),
        },
        "What the server saw": report.server_view,
        "Answers that did not count": refusals(report.refused) or {"none": "every answer that came counted"},
        "Privacy budgets spent": report.budgets() or {"none": "no site reported one"},
    }
