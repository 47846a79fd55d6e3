"""One page for one site, to be printed: should it join, how sure is that, and what was compared."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from fedekd import __version__
from fedekd.errors import FedekdError, unknown
from fedekd.report import palette
from fedekd.report.figures import CONFIG, painted
from fedekd.report.html.chart import Spec, lines_of, names, state_colour, state_of, state_shape, zero_line
from fedekd.report.html.clients import gain_title
from fedekd.report.html.render import asset, environment
from fedekd.report.html.run_data import RunData
from fedekd.report.html.words import between
from fedekd.runs.transfer import ClientTransfer
from fedekd.runs.verdict_text import JOIN, STATES, STAY, advice_by_client, chosen, independence
from fedekd.units import count
from fedekd.verdicts import EQUIVALENT, HARMED, HELPED, UNDECIDED

MEANING = {
    HELPED: "better with the method than alone, by more than chance explains",
    HARMED: "worse with the method than alone, by more than chance explains",
    EQUIVALENT: "any difference is too small to matter",
    UNDECIDED: "the test rows are too few to tell",
}
BETTER = {True: "higher is better", False: "lower is better"}


def render_handout(data: RunData, site: str) -> str:
    clients = _clients(data, site)
    (decision, reason), *_ = (
        one for (client, _), one in advice_by_client(data.transfer.values(), data.unit).items() if client == site
    )
    percent = ", %" if data.unit.percent else ""
    called, first = (f"client {site}", f"Client {site}") if site.isdigit() else (site, site)  # as a sentence begins
    title = {JOIN: f"{first} should join", STAY: f"{first} should stay alone"}
    row = next(client for client in data.first["clients"] if client["id"] == site)
    return (
        environment()
        .get_template("handout.html")
        .render(
            style=Markup(asset("handout.css").replace("/*light*/", palette.variables(palette.LIGHT))),
            site=called,
            title=title.get(decision, f"Whether {called} should join is not yet known"),
            reason=reason[0].upper() + reason[1:] + ".",
            about=_about(data),
            chart=Markup(_chart(data, clients)),
            heads=["method", f"alone{percent}", f"with the method{percent}", "gain", "95 % interval", "verdict"],
            rows=[_row(data, label, client) for label, client in clients.items()],
            meaning=[(STATES[state], words) for state, words in MEANING.items()],
            held=_held(data, first, row),
            facts=_facts(data),
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


def _row(data: RunData, label: str, client: ClientTransfer) -> dict[str, Any]:
    unit, verdict = data.unit, client.verdict
    assert verdict is not None
    alone, value = map(unit.value, client.values)
    marks = {HELPED: "helped", HARMED: "harmed"}
    cells = [alone, value, unit.delta(client.parts["gain"])]
    cells += [between((verdict.low, verdict.high), unit).removesuffix(" points"), STATES[verdict.state]]
    return {"label": label, "cells": cells, "mark": marks.get(verdict.state, "")}


def _about(data: RunData) -> str:
    unit, method = data.unit, next(iter(data.transfer.values()))
    alone = f"the best that the site can do alone, chosen {chosen(method.chosen_by)}"
    alone = alone if len(method.menu) > 1 else "training alone"
    points = "; gains are in percentage points" if unit.percent else ""
    return (
        f"Each method was trained together with {count(len(data.names) - 1, 'other site')}, and compared with {alone}. "
        f"Both were tested on the same rows of this site, which took no part in training. "
        f"The figure is {unit.titled} ({BETTER[unit.higher_is_better]}){points}."
    )


def _held(data: RunData, called: str, row: Any) -> str:
    rows = f"{row['n_train']:,} training, {row['n_val']:,} validation and {row['n_test']:,} test rows"
    floor = data.floor(row["id"], data.seeds)
    least = "" if floor is None else f" The same answer for every test row would give {data.unit.value(floor)}."
    model = f" Its model: {row['model']}." if row.get("model") else ""
    return f"{called} has {rows}.{model}{least}"


def _facts(data: RunData) -> str:
    params, first = data.first["params"], data.first
    done = (
        f"{first['dataset']}, {count(params['rounds'], 'round')}, {count(len(data.seeds), 'seed')}, "
        f"finished {max(r['finished'] for r in data.records)[:10]}"
    )
    holds = independence(first["partition"].get("group"))
    return f"{done}. {holds}. Verdicts are at the 5 % level over all sites and methods."


def _chart(data: RunData, clients: dict[str, ClientTransfer]) -> str:
    import vl_convert

    f = data.scale.factor
    rows = [
        {
            "method": label,
            "gain": f * one.parts["gain"],
            "low": f * one.verdict.low,
            "high": f * one.verdict.high,
            "state": state_of(one.verdict),
        }
        for label, one in clients.items()
        if one.verdict is not None
    ]
    x = {
        "field": "gain",
        "type": "quantitative",
        "title": gain_title(data.scale),
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
