"""One page for one site, to be printed: should it join, how sure is that, and what was compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from fedekd import __version__
from fedekd.errors import FedekdError, unknown
from fedekd.report import palette
from fedekd.report.html.chart import MetricScale, Spec, lines_of, names, state_colour, state_shape, zero_line
from fedekd.report.html.clients import gain_title
from fedekd.report.html.render import asset, environment
from fedekd.report.html.run_data import RunData
from fedekd.report.html.words import between
from fedekd.report.painting import CONFIG, painted
from fedekd.runs.federation_report import SECURE, SUMS, SiteReport, budgets, other_metrics
from fedekd.runs.transfer import ClientTransfer
from fedekd.runs.verdict_text import JOIN, STATES, STAY, advice_by_client, chosen, independence, site_menu
from fedekd.settings import ChosenBy
from fedekd.units import Unit, count
from fedekd.verdicts import EQUIVALENT, HARMED, HELPED, UNDECIDED

MEANING = {
    HELPED: "better with the method than alone, by more than chance explains",
    HARMED: "worse with the method than alone, by more than chance explains",
    EQUIVALENT: "any difference is too small to matter",
    UNDECIDED: "the test rows are too few to tell",
}
BETTER = {True: "higher is better", False: "lower is better"}


class Line(NamedTuple):
    """A method in the table and the chart."""

    label: str
    alone: float
    joined: float
    gain: float
    interval: tuple[float, float]
    """NaN where the test rows give none."""
    state: str


def render_handout(data: RunData, site: str) -> str:
    clients = _clients(data, site)
    lines = [_line(label, client) for label, client in clients.items()]
    (decision, reason), *_ = (
        one for (client, _), one in advice_by_client(data.transfer.values(), data.unit).items() if client == site
    )
    called, first = (f"client {site}", f"Client {site}") if site.isdigit() else (site, site)  # as a sentence begins
    row = next(client for client in data.first["clients"] if client["id"] == site)
    held = _held(data, first, row, next(iter(clients.values())).n_test)
    return _page(called, first, decision, reason, lines, data.unit, _about(data), held, _facts(data))


def render_own(own: SiteReport, federation: str, day: str) -> str:
    """The same page of a real site, from what it keeps of a federation: ``day`` is that of the file."""
    missing = [part for part in ("verdict", "joined", "alone", "gain", "n_val", "n_test") if part not in own]
    if missing:
        raise FedekdError(f"the report of federation {federation} is of an older fedekd and has no {missing[0]}")
    unit = Unit.of([{"metric": own["metric"], "clients": [{"local": own["local"]}]}])
    name, verdict, low, high = own["name"], own["verdict"], own["verdict"].get("low"), own["verdict"].get("high")
    interval = (math.nan, math.nan) if low is None or high is None else (low, high)
    line = Line(own["method"], own["alone"]["value"], own["joined"]["value"], own["gain"], interval, verdict["state"])
    said = [
        f"Federation {federation}, report of {day}",
        independence(own.get("group")),
        *site_menu(own),
        *(f"Privacy of what left: {one}" for one in budgets({name: own.get("privacy")}).values()),
        *([f"The server saw {SUMS}"] if own.get("aggregation") == SECURE else []),
        "The verdict is at the 5 % level",
    ]
    facts = " ".join(f"{one.removesuffix('.')}." for one in said)
    together = f"{own['method']} was trained together with other sites"
    alone = _alone(len(own.get("menu", ())), own.get("chosen_by", "metric"))
    held = f"{name} has {_rows(own)}."
    return _page(
        name, name, verdict["recommendation"], verdict["reason"], [line], unit, _compared(unit, together, alone), held,
        facts, other_metrics(own),
    )  # fmt: skip


def _page(
    called: str,
    first: str,
    decision: str,
    reason: str,
    lines: list[Line],
    unit: Unit,
    about: str,
    held: str,
    facts: str,
    others: Sequence[tuple[str, str, str]] = (),
) -> str:
    percent = ", %" if unit.percent else ""
    title = {JOIN: f"{first} should join", STAY: f"{first} should stay alone"}
    return (
        environment()
        .get_template("handout.html")
        .render(
            style=Markup(asset("handout.css").replace("/*light*/", palette.variables(palette.LIGHT))),
            site=called,
            title=title.get(decision, f"Whether {called} should join is not yet known"),
            reason=reason[0].upper() + reason[1:] + ".",
            about=about,
            chart=Markup(_chart(MetricScale(unit), lines)),
            heads=["method", f"alone{percent}", f"with the method{percent}", "gain", "95 % interval", "verdict"],
            rows=[_row(unit, line) for line in lines],
            others=others,
            meaning=[(STATES[state], words) for state, words in MEANING.items()],
            held=held,
            facts=facts,
            version=__version__,
        )
    )


def _clients(data: RunData, site: str) -> dict[str, ClientTransfer]:
    """By method, the one client of this name."""
    if site not in data.names:
        raise unknown("site", site, data.names)
    if not data.transfer:
        raise FedekdError(
            "only training alone has run, so there is nothing to tell a site; name methods with --methods"
        )
    found = {label: [c for c in method.clients if c.client == site] for label, method in data.transfer.items()}
    if any(len(some) > 1 for some in found.values()):
        raise FedekdError(
            f"every seed splits the data anew, so that {site} has other rows in each; run again with --split-seed 0"
        )
    known = {label: one for label, (one,) in found.items() if one.verdict is not None}
    if not known:
        raise FedekdError("these records do not hold the test rows that a verdict needs; run again with this fedekd")
    ranked = sorted(known, key=lambda label: data.unit.harm(known[label].parts["gain"]))
    return {label: known[label] for label in ranked}


def _line(label: str, client: ClientTransfer) -> Line:
    verdict = client.verdict
    assert verdict is not None
    alone, joined = client.values
    return Line(label, alone, joined, client.parts["gain"], (verdict.low, verdict.high), verdict.state)


def _row(unit: Unit, line: Line) -> dict[str, Any]:
    marks = {HELPED: "helped", HARMED: "harmed"}
    interval = between(line.interval, unit).removesuffix(" points") if math.isfinite(line.interval[0]) else "n/a"
    cells = [unit.value(line.alone), unit.value(line.joined), unit.delta(line.gain), interval, STATES[line.state]]
    return {"label": line.label, "cells": cells, "mark": marks.get(line.state, "")}


def _about(data: RunData) -> str:
    method = next(iter(data.transfer.values()))
    together = f"Each method was trained together with {count(len(data.names) - 1, 'other site')}"
    return _compared(data.unit, together, _alone(len(method.menu), method.chosen_by))


def _alone(menu: int, by: ChosenBy) -> str:
    return f"the best that the site can do alone, chosen {chosen(by)}" if menu > 1 else "training alone"


def _compared(unit: Unit, together: str, alone: str) -> str:
    points = "; gains are in percentage points" if unit.percent else ""
    return (
        f"{together}, and compared with {alone}. "
        f"Both were tested on the same rows of this site, which took no part in training. "
        f"The figure is {unit.titled} ({BETTER[unit.higher_is_better]}){points}."
    )


def _held(data: RunData, called: str, row: Any, tested: int) -> str:
    rows = _rows(row)
    if folds := data.first["partition"].get("folds"):
        rows = f"about {rows} in each of {folds} folds, and {tested:,} of its rows were tested in all"
    floor, percent = data.floor(row["id"], data.seeds), " %" if data.unit.percent else ""
    least = (
        "" if floor is None else f" The same answer for every test row would give {data.unit.value(floor)}{percent}."
    )
    model = f" Its model: {row['model']}." if row.get("model") else ""
    return f"{called} has {rows}.{model}{least}"


def _rows(held: Any) -> str:
    return f"{held['n_train']:,} training, {held['n_val']:,} validation and {held['n_test']:,} test rows"


def _facts(data: RunData) -> str:
    params, first = data.first["params"], data.first
    done = (
        f"{first['dataset']}, {count(params['rounds'], 'round')}, {count(len(data.seeds), 'seed')}, "
        f"finished {max(r['finished'] for r in data.records)[:10]}"
    )
    holds = independence(first["partition"].get("group"))
    return (
        f"{done}. {holds}. Verdicts are at the 5 % level over all sites and methods together (Holm's method), so an "
        "interval that leaves out zero can be undecided."
    )


def _chart(scale: MetricScale, lines: list[Line]) -> str:
    import vl_convert

    f = scale.factor
    rows = [
        {
            "method": line.label,
            "gain": f * line.gain,
            "low": f * line.interval[0],
            "high": f * line.interval[1],
            "state": STATES[line.state],
        }
        for line in lines
    ]
    x = {
        "field": "gain",
        "type": "quantitative",
        "title": gain_title(scale),
        "axis": {"tickCount": 6, "labelOverlap": True},
    }
    layers: list[Spec] = [
        zero_line(),
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": state_colour()},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {"x": x, "color": state_colour(), "shape": state_shape()},
        },
    ]
    spec = {**lines_of("method", 30), "encoding": {"y": names("method", grid=True)}, "layer": layers}
    plain = [{k: None if isinstance(v, float) and v - v != 0 else v for k, v in row.items()} for row in rows]
    size = {"width": 480, "height": 30 * len(rows), "autosize": {"type": "fit-x", "contains": "padding"}}
    size["padding"] = {"left": 40, "right": 10, "top": 5, "bottom": 5}  # fonts differ in width
    return vl_convert.vegalite_to_svg({**painted(spec), **size, "data": {"values": plain}, "config": CONFIG})
