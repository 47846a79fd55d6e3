"""The page of two runs side by side: which settings differ, and what that changed for methods and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedekd import metrics, verdicts
from fedekd.report.html.run_data import RunData
from fedekd.report.html.section import Block, Cell, Headline, Page, Section, Variants, cell, table
from fedekd.runs.choosing import choice_of
from fedekd.runs.records import Record
from fedekd.runs.row_results import compared, groups_of, rows_of
from fedekd.runs.verdict_text import independence, interval, menu, told
from fedekd.units import Unit, count
from fedekd.verdicts import EQUIVALENT, HARMED, HELPED, UNDECIDED, Comparison, Verdict

WORDS = {HARMED: "clearly worse", HELPED: "clearly better", EQUIVALENT: "equivalent", UNDECIDED: "undecided"}
MARKS = {HARMED: "harmed", HELPED: "helped"}


@dataclass(frozen=True, eq=False)
class TwoRuns:
    """Records of the same metric, by the names that the page gives them."""

    names: tuple[str, str]
    data: tuple[RunData, RunData]
    folders: tuple[Path, Path]

    @property
    def unit(self) -> Unit:
        return Unit.of([*self.data[0].records, *self.data[1].records])

    def pairs(self) -> Iterator[tuple[str, int, Record, Record]]:
        """Runs of one method, seed, clients and test rows, of which only the settings differ."""
        one, other = self.data
        for label in one.labels:
            for seed in one.seeds:
                if (label, seed) in one.by and (label, seed) in other.by:
                    a, b = one.by[label, seed], other.by[label, seed]
                    if _rows(a) == _rows(b):
                        yield label, seed, a, b


def _rows(record: Record) -> tuple[Any, ...]:
    """What two runs must share for a client to be the same client with the same test rows."""
    clients = [(client["id"], client["n_test"]) for client in record["clients"]]
    return record["dataset"], record["partition"]["fingerprint"], clients


def difference_page(two: TwoRuns) -> Page:
    pairs = list(two.pairs())
    changed = _changed(two)
    lines = [f"{count(len(changed), 'setting')} {'differs' if len(changed) == 1 else 'differ'}."]
    if pairs:
        seeds = len({seed for _, seed, *_ in pairs})
        lines.append(
            f"On {count(seeds, 'seed')} both have the same clients and test rows, so their clients are compared."
        )
        lines.append(_means(two, pairs))
    else:
        lines.append("No method and seed has the same clients and test rows in both, so only means can be compared.")
    title = f"{two.names[0]} and {two.names[1]}"
    sections = [
        Section("settings", "What differs", [_settings(two, changed)] if changed else []),
        Section("methods", "Method by method", [_methods(two, pairs)]),
        Section("clients", "Client by client", [_clients(two, pairs)] if pairs else []),
    ]
    datasets = " and ".join(dict.fromkeys(data.first["dataset"] for data in two.data))
    kicker = f"{datasets} · two runs side by side · {two.unit.name}"
    hero = Variants(("method",), {"": Headline(title, lines)}, "")
    return Page(title, kicker, hero, [s for s in sections if s.parts], ())


# --- settings ----------------------------------------------------------------------------------------------


def _changed(two: TwoRuns) -> dict[str, tuple[str, str]]:
    both = [label for label in two.data[0].labels if label in two.data[1].labels]
    one, other = (_facts(data, both) for data in two.data)
    names = dict.fromkeys((*one, *other))
    return {n: (one.get(n, ""), other.get(n, "")) for n in names if one.get(n) != other.get(n)}


def _facts(data: RunData, labels: Sequence[str]) -> dict[str, str]:
    """``labels``: the methods whose parameters to tell."""
    first, partition = data.first, data.first["partition"]
    facts: dict[str, Any] = {
        "dataset": first["dataset"],
        "methods": ", ".join(data.labels),
        "seeds": ", ".join(map(str, data.seeds)),
        **{name: value for name, value in partition.items() if name not in ("fingerprint", "seed", "alpha", "fold")},
        "split seed": partition["seed"] if partition.get("fixed") else None,
        "alpha": first["alpha"],
    }
    for label in labels:
        own = data.of(label)[0]["params"]
        facts |= {name if name in first["params"] else f"{label}: {name}": value for name, value in own.items()}
    facts |= {f"version of {name}": version for name, version in first["versions"].items()}
    facts["best alone chosen by"] = choice_of(data.records)
    facts["hardware"] = data.made_by.get("hardware")
    return {name: str(value) for name, value in facts.items() if value is not None}


def _settings(two: TwoRuns, changed: Mapping[str, tuple[str, str]]) -> Block:
    rows = [([name], [_words(text or "–") for text in values]) for name, values in changed.items()]
    return table("Settings", ["setting"], [("", name) for name in two.names], rows)


# --- figures -----------------------------------------------------------------------------------------------


def _methods(two: TwoRuns, pairs: Sequence[tuple[str, int, Record, Record]]) -> Block:
    unit, rows = two.unit, []
    for label in dict.fromkeys((*two.data[0].labels, *two.data[1].labels)):
        means = [_mean(data, label, unit) for data in two.data]
        gap, between = _gap(pairs, label, unit) if label in _labels(pairs) else ("–", "")
        states = [told(data.transfer[label]) if label in data.transfer else "–" for data in two.data]
        rows.append(([label], [*map(cell, means), cell(gap, between), *map(_words, states)]))
    percent = ", %" if unit.percent else ""
    figures = (*two.names, f"{two.names[1]} minus {two.names[0]}")
    columns = [(f"mean {unit.name}{percent}", name) for name in figures] + [("clients", name) for name in two.names]
    notes = [
        "Each mean is over all seeds of its run. The difference is over the seeds on which both have the same clients "
        "and test rows, with a 95 % interval paired by seed where there are several.",
        "Clients: each against the best it can do alone, in its own run.",
    ]
    for name, data in zip(two.names, two.data, strict=True):
        if choice_of(data.records) != "metric":
            notes += [f"{name}: {line}" for line in dict.fromkeys(map(menu, data.transfer.values()))]
    return table("Means over clients and seeds", ["method"], columns, rows, notes)


def _labels(pairs: Sequence[tuple[str, int, Record, Record]]) -> list[str]:
    return list(dict.fromkeys(label for label, *_ in pairs))


def _gap(pairs: Sequence[tuple[str, int, Record, Record]], label: str, unit: Unit) -> tuple[str, str]:
    """The mean difference of a method, and its interval where there are several seeds."""
    gaps = [b["mean"] - a["mean"] for name, _, a, b in pairs if name == label]
    found = metrics.paired_interval(gaps)
    return unit.delta(metrics.mean(gaps)), " to ".join(unit.delta(x) for x in found) if found else ""


def _means(two: TwoRuns, pairs: Sequence[tuple[str, int, Record, Record]]) -> str:
    """What the settings changed on average, in a sentence."""
    unit, gaps = two.unit, []
    for label in (label for label in _labels(pairs) if label in two.data[0].shown):
        gap, between = _gap(pairs, label, unit)
        gaps.append(f"{label} {gap}" + (f" ({between})" if between else ""))
    about = (", in points" if unit.percent else "") + ("" if unit.higher_is_better else ", lower is better")
    return f"Mean {unit.name}, {two.names[1]} minus {two.names[0]}{about}: {'; '.join(gaps)}."


def _mean(data: RunData, label: str, unit: Unit) -> str:
    return unit.value(data.summary[label]["mean"]["mean"]) if label in data.summary else "–"


def _clients(two: TwoRuns, pairs: Sequence[tuple[str, int, Record, Record]]) -> Block:
    unit = two.unit
    units: list[tuple[list[str], tuple[float, float], Comparison | None]] = []
    for label, seed, a, b in pairs:
        for k, (one, other) in enumerate(zip(a["clients"], b["clients"], strict=True)):
            own, base = rows_of(b, k, two.folders[1]), rows_of(a, k, two.folders[0])
            both = compared([own], [base], a["metric"], groups_of(a, k))
            units.append(([label, str(one["id"]), str(seed)], (one["value"], other["value"]), both))
    judged = iter(verdicts.judge([both for *_, both in units if both is not None]))
    rows = [(heads, _client(values, next(judged) if both is not None else None, unit)) for heads, values, both in units]
    percent = ", %" if unit.percent else ""
    figures = (*two.names, f"{two.names[1]} minus {two.names[0]}")
    columns = [*((f"{unit.name}{percent}", name) for name in figures), ("", "verdict")]
    group = two.data[0].first["partition"].get("group")
    clear = "Clearly: at the 5 % level over all lines of this table (Holm's method)."
    when = "; ".join(f"{name} {data.after}" for name, data in zip(two.names, two.data, strict=True))
    notes = [f"{when}. {independence(group)}. {clear}"]
    return table("Every client that both runs have", ["method", "client", "seed"], columns, rows, notes)


def _client(values: tuple[float, float], verdict: Verdict | None, unit: Unit) -> list[Cell]:
    gap = unit.delta(values[1] - values[0])
    if verdict is None:
        return [*(cell(unit.value(value)) for value in values), cell(gap), cell("no test rows kept")]
    state = cell(WORDS[verdict.state], mark=MARKS.get(verdict.state, ""))
    return [*(cell(unit.value(value)) for value in values), cell(gap, interval(verdict, unit)), state]


def _words(text: str) -> Cell:
    return cell(text, mark="words")
