"""The page of one run: every client with and without each method, and how that came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedekd.report.html import calibration, clients, confusion, cost, holdings, learning, methods, reliability, trust
from fedekd.report.html.chart import Chart, variant
from fedekd.report.html.headline import headline, kicker
from fedekd.report.html.run_data import RunData
from fedekd.report.html.section import Block, Headline, Page, Section, Variants, cell, table
from fedekd.report.html.words import about_models
from fedekd.runs.aggregate import SHARED, SummaryRow
from fedekd.runs.records import DoubtedSample, PublicPart
from fedekd.runs.subgroups import HEADS
from fedekd.runs.summary import Deltas, interval_of, state_columns
from fedekd.runs.verdict_text import STATES, independence
from fedekd.settings import MANY
from fedekd.units import BAD, GOOD, duration, volume
from fedekd.verdicts import HARMED, HELPED

NO_DETAILS = (
    "This folder holds results but no details of rounds, trust weights and samples: fedekd run leaves them, but not of "
    f"{MANY:,} clients or more; studies and older versions do not."
)


def run_page(data: RunData, notes: Sequence[str], thumbnails: bool) -> Page:
    heads = {str(m): headline(data, label) for m, label in enumerate(data.compared)}
    alone = Headline("Nothing to compare yet", ["Only training alone has run; name methods with --methods."])
    hero = Variants(("method",), heads or {"": alone}, str(data.favourite) if heads else "")
    compared = [clients.advice(data), clients.gains(data), clients.ranks(data)] if heads else []
    side_by_side = [methods.strip(data), methods.parts(data)] if heads else []
    sections = [
        Section("sites", "Did joining help?", [part for part in (*compared, _subgroups(data)) if part]),
        Section("all", "All methods", [*(part for part in side_by_side if part), _summary(data)]),
    ]
    losses = [chart for chart in (learning.validation_losses(data), learning.two_losses(data)) if chart.rows]
    if data.details:
        sections += [
            Section("learning", "Learning", [learning.method_curves(data), learning.clients_learning(data), *losses]),
            Section("answers", "What is mistaken for what", confusion.confusion_charts(data)),
            Section("calibration-curve", "Calibration", [chart] if (chart := calibration.calibration(data)) else []),
            Section("data", "The data", [holdings.holdings(data)]),
            *_gate(data, thumbnails),
            Section("cost", "Cost", [cost.traffic(data), cost.time(data), cost.per_round(data)]),
        ]
    else:
        notes = [*notes, NO_DETAILS]
        sections += [Section("learning", "Learning", losses)]
        sections.append(Section("cost", "Cost", [cost.traffic(data), cost.time(data)]))
    sections.append(Section("settings", "Settings", [_settings(data)]))
    choices = [*data.choices(), *filter(None, [confusion.client_choice(data)])]
    title = f"{data.first['dataset']}: did joining help?"
    shown = [_of_seed(section) if len(data.seeds) > 1 else section for section in sections if section.parts]
    return Page(title, kicker(data), hero, shown, choices, notes)


def _of_seed(section: Section) -> Section:
    """The section, with the words that it is about one seed where all of it is."""
    follows = [
        part.follows if isinstance(part, Chart) else getattr(part.content, "follows", ()) for part in section.parts
    ]
    if not all("seed" in names for names in follows):
        return section
    return replace(section, intro=f"{section.intro} For the seed that is chosen at the top.".strip())


def _gate(data: RunData, thumbnails: bool) -> list[Section]:
    """What only gated methods leave; nothing where none has run."""
    weights, energies = trust.rounds(data), reliability.reliability(data)
    asked = "A gated method weighs each sample: how far may the shared proxy teach the private model here?"
    parts: list[Chart | Block] = [
        weights,
        trust.ends(data),
        trust.by_client(data),
        trust.course(data),
        *([_distrusted(data)] if thumbnails else []),
    ]
    sections = [Section("trust-weights", "Trust", parts, asked)] if weights.rows else []
    if energies.rows:
        sections.append(Section("energy", "Reliability", [energies, reliability.weights(data)]))
    return sections


def _summary(data: RunData) -> Block:
    unit = data.unit
    rows = []
    states = state_columns(list(data.summary.values()), list(data.transfer.values()))
    marks = {GOOD: "helped", BAD: "harmed"}
    for k, (label, row) in enumerate(data.summary.items()):
        alone, interval = label == data.alone, interval_of(row)
        clear = {1: "helped", -1: "harmed", 0: ""}[unit.direction(row["avg_delta"]["interval"])]

        def signed(key: Deltas, effect: str = "", row: SummaryRow = row, alone: bool = alone) -> tuple[str, str]:
            return ("", "") if alone else (unit.delta(row[key]["mean"]), effect)

        between = " to ".join(unit.delta(x) for x in interval) if interval and not alone else ""
        sent = row["bytes_up"] + row["bytes_down"]
        rows.append(
            {
                "label": label,
                "deltas": [signed("avg_delta", clear), signed("worst_delta"), signed("tail_delta")],
                "interval": between,
                "states": [(column.cells[k].text, marks.get(column.cells[k].style, "")) for column in states],
                "figures": [
                    unit.value(row["mean"]["mean"]),
                    unit.value(row["worst"]["mean"]),
                    volume(sent) if sent else "",
                    duration(row["seconds"]),
                ],
            }
        )
    several, known = len(data.seeds) > 1, any(row["interval"] for row in rows)
    heads = ["Avg Δ", *(["95 % interval"] if known else []), "Worst Δ", f"{unit.tail} Δ"]
    heads += [column.header for column in states]
    percent = ", %" if unit.percent else ""
    heads += [f"mean {unit.name}{percent}", f"worst {unit.name}{percent}", "sent", "time"]
    about = (
        f"{'Means over seeds. ' if several else ''}Δ: with the method minus Local, both {data.after}"
        f"{', in points' if percent else ''}; "
        f"Worst: the client that lost most{' on each seed' if several else ''}; {unit.tail}: the {unit.tail[1:]}th "
        "percentile of clients."
    )
    about += about_models(data) if known else ""
    return Block("summary.html", {"heads": heads, "rows": rows, "intervals": known}, "In figures", about)


def _subgroups(data: RunData) -> Block | None:
    """Δ by the values of a column; nothing where no column was named."""
    if not data.subgroups:
        return None
    marks = {STATES[HELPED]: "helped", STATES[HARMED]: "harmed"}

    points = " in points" if data.unit.percent else ""
    column, group = data.subgroups[0].column, data.first["partition"].get("group")
    notes = [
        *(f"{method.label}: {method.told}." for method in data.subgroups),
        f"Δ of {data.unit.name}{points}: with the method minus Local {data.after}, mean over clients by their test "
        f"rows. {independence(group)}. Clearly: at the 5 % level over all methods and values here (Holm's method).",
    ]
    rows = [
        ([method.label, name], [cell(text, mark=marks.get(text, "")) for text in told])
        for method in data.subgroups
        for name, *told in method.cells()
    ]
    return table(f"Δ by {column}", ["method", HEADS[0]], [("", head) for head in HEADS[1:]], rows, notes)


def _distrusted(data: RunData) -> Block:
    by = {}
    for key, label, seed, _ in data.runs():
        detail = data.detail(label, seed)
        if detail and (samples := detail["distrusted"]):
            by[key] = {"pictures": any(s["image"] for s in samples), "samples": [_sample(s) for s in samples]}
    first = variant(data.favourite, data.worst_seed)
    about = (
        "The training samples with the lowest weights: what they are, what the client's private model says and what "
        "the proxy says. Where the proxy is wrong the gate did its work; where it is right, it was too wary."
    )
    content = Variants(("method", "seed"), by, first, trust.EMPTY)
    return Block("distrusted.html", content, "Most distrusted samples", about)


def _sample(sample: DoubtedSample) -> dict[str, Any]:
    def text(value: Any) -> str:
        return f"{value:,.5g}" if isinstance(value, float) else str(value)

    shown = {key: text(sample[key]) for key in ("client", "row", "label", "private", "proxy")}
    numbers = isinstance(sample["label"], float)
    return {
        **shown,
        "energy": f"{sample['energy']:.3g}",
        "trust": f"{sample['trust']:.2f}",
        "image": sample["image"],
        "wrong": None if numbers else shown["proxy"] != shown["label"],
    }


def _public(public: PublicPart | None) -> str:
    if public is None:
        return ""
    what = "of a file" if "file" in public else f"a share of {public['share']:g}"
    return f"{public['rows']:,} rows, {what}" + ("" if public.get("labelled", True) else ", without labels")


def _settings(data: RunData) -> Block:
    first = data.first
    shared = {name: value for name, value in first["params"].items() if name in (*SHARED, "device")}
    partition = first["partition"]
    groups: dict[str, dict[str, Any]] = {
        "Made by": {"last command": data.made_by.get("command"), "hardware": data.made_by.get("hardware")},
        "Data": {
            "dataset": first["dataset"],
            "task": first["task"],
            "metric": data.unit.name,
            "split": partition["kind"],
            "alpha": "" if first["alpha"] is None else f"{first['alpha']:g}",
            "split seed": partition["seed"] if partition.get("fixed") else None,
            "folds": partition.get("folds"),
            "fraction": partition.get("fraction"),
            "rows of one": partition.get("group"),
            "subgroups": partition.get("subgroups", {}).get("column"),
            "public": _public(partition.get("public")),
            "clients": len(first["clients"]),
            "seeds": ", ".join(map(str, data.seeds)),
        },
        "Training": shared,
        "Versions": first["versions"],
    }
    for label in data.compared:
        record = data.of(label)[0]
        own = {k: v for k, v in record["params"].items() if k not in shared}
        groups |= {label: own} if own else {}
    ended = max((r["finished"] for r in data.records), default="")
    groups["Versions"] = {**groups["Versions"], "finished": ended}
    known = {k: {n: v for n, v in g.items() if v not in ("", None)} for k, g in groups.items()}
    return Block("settings.html", {k: group for k, group in known.items() if group})
