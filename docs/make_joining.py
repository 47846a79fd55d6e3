"""Write docs/joining.md and its figure from the committed records.

    python docs/make_joining.py

Most are of `fedekd study joining` and `fedekd study paper`, both with `--device cuda --precision bf16`. The page names
the commands that made the others: the rivals' configurations, regressions with short training, hospitals on many seeds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from joining_figure import figure
from joining_records import (
    BASE,
    HOME,
    NEAR,
    Setting,
    Tuned,
    by_label,
    clearly_above,
    interval,
    points,
    records,
    rmse,
    settings,
    standing,
    with_interval,
)

from fedekd.metrics import paired_interval
from fedekd.runs.choosing import FEW
from fedekd.runs.findings import TITLES, findings, headline, losses
from fedekd.runs.records import Record
from fedekd.runs.row_results import compared, rows_of
from fedekd.runs.transfer import analyse
from fedekd.verdicts import HARMED, HELPED, judge

TAUGHT = "second-opinion-taught"
TRAINS_AS_LOCAL = ("fedavg", "fedper", "apfl")  # where nothing is exchanged, APFL up to rounding


def by_seed(some: list[Record]) -> dict[tuple[str, float | None], dict[str, dict[int, Record]]]:
    cells: dict[tuple[str, float | None], dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for r in some:
        cells[r["dataset"], r["alpha"]][r["label"]][r["seed"]] = r
    return cells


def controls() -> list[str]:
    rows = [
        ("fedekd", "FedeKD"),
        ("fedekd@alone", "FedeKD, proxy never exchanged"),
        ("fedekd@shuffled", "FedeKD, teacher's outputs shuffled across samples"),
        ("local-smooth-tenth", "alone, targets smoothed with weight 0.1"),
        ("local-smooth-quarter", "alone, targets smoothed with weight 0.25"),
        ("local-smooth", "alone, targets smoothed with weight 0.5"),
    ]
    found = by_seed([r for r in records("paper") if r["task"] == "classification"])
    cells = {place: cell for place, cell in found.items() if all(label in cell for label, _ in rows)}
    lines = ["| Avg Δ against plain Local, points | " + " | ".join(f"{TITLES[d]} α={a:g}" for d, a in cells) + " |"]
    lines.append("| --- |" + " ---: |" * len(cells))
    for label, title in rows:
        found = [with_interval([r["avg_delta"] for r in cell[label].values()]) for cell in cells.values()]
        lines.append(f"| {title} | " + " | ".join(found) + " |")
    return lines


def longer(every: list[Setting]) -> str:
    """By how much FedeKD is ahead of each of its controls, with intervals paired over seeds."""
    others = {
        "fedekd@alone": "proxy never exchanged",
        "fedekd@shuffled": "teacher's outputs shuffled across samples",
        "fedekd-half": "trust of ½ for every sample",
        "local-smooth": "alone, targets smoothed with weight 0.5",
    }
    heads = "FedeKD is ahead of (points)", "plain Local", *others.values()
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    leads: dict[str, list[np.ndarray]] = {label: [] for label in others}
    for one in every:
        seeds = sorted(one.by["fedekd"])
        own = one.deltas("fedekd", seeds)
        for label, found in leads.items():
            found.append(own - one.deltas(label, seeds))
        cells = [with_interval(list(found[-1])) for found in leads.values()]
        lines.append(f"| {one.name} | {with_interval(list(own))} | " + " | ".join(cells) + " |")
    twin, shuffled, half, smooth = (
        f"{sum(clearly_above(lead) for lead in found)}, and clearly behind it in "
        f"{sum(clearly_above(-lead) for lead in found)}"
        for found in leads.values()
    )
    table = "\n".join(lines)
    return f"""With the longer training of the {len(every)} settings in the tables above, FedeKD is clearly ahead

- of its twin, whose proxy is never exchanged, in {twin};
- of a teacher that knows nothing about the sample in {shuffled};
- of smoothed training alone in {smooth};
- of FedeKD without its gate (a trust of ½ for every sample) in {half}.

{table}"""


def over_splits() -> list[str]:
    """What `fedekd study paper` finds of FedeKD where its controls have been run, the headline first."""
    found = findings([r for r in records("paper") if r["label"] == r["method"]])
    own = [one for one in found if one.label == "fedekd" and not one.wanted]
    return [f"**{headline(own)}.** {losses(own)}.", "", *(f"- {one.sentence()}" for one in own)]


def apart(every: list[Setting]) -> list[str]:
    """Second-opinion-near taken apart, one line for each setting."""
    heads = "Δ", "recipe", "federation", "gain over the best alone", "clearly helped", "clearly harmed"
    lines = ["| data | rows per client | " + " | ".join(heads) + " |"]
    lines.append("| --- |" + " ---: |" * 7)
    for one in every:
        near = one.taken_apart[NEAR]
        parts = [near.summary[part] for part in ("delta", "recipe", "federation", "gain")]
        cells = [points(part["mean"]) + interval(part["interval"]) for part in parts]
        states = [f"{near.states[state]} of {len(near.clients)}" for state in (HELPED, HARMED)]
        lines.append(f"| {one.name} | {one.rows:.0f} | " + " | ".join([*cells, *states]) + " |")
    return lines


def rivals(every: list[Setting]) -> list[str]:
    """Each method's Δ, and by how much second-opinion-near is ahead of it, with the interval paired over seeds."""
    labels = {label for one in every for label in one.by if "@" not in label} - {"local", NEAR}
    mean = {x: float(np.mean([one.deltas(x, one.by[x]).mean() for one in every if x in one.by])) for x in labels}
    title = TITLES[every[0].dataset]
    lines = [f"| {title}: Avg Δ (behind) | MB sent a round | " + " | ".join(one.split for one in every) + " |"]
    lines.append("| --- | ---: |" + " ---: |" * len(every))
    for label in (NEAR, *sorted(labels, key=mean.__getitem__, reverse=True)):
        cells = []
        for one in every:
            if label not in one.by:
                cells.append("–")
                continue
            delta = points(float(one.deltas(label, one.by[label]).mean()))
            cells.append(f"**{delta}**" if label == NEAR else f"{delta} ({with_interval(one.lead(label))})")
        sent = next(next(iter(one.by[label].values())) for one in every if label in one.by)
        rounds = len(sent["clients"][0]["curve"]["value"])
        a_round = (sent["bytes_up"] + sent["bytes_down"]) / rounds / 1e6
        lines.append(f"| {label} | {a_round:.1f} | " + " | ".join(cells) + " |")
    return lines


def said(every: list[Setting]) -> str:
    """What the tables say, in sentences."""
    near = standing(every, NEAR)
    tuned = any(not label.startswith(BASE) for one in every for label in one.other_configurations)
    it_has = "Counting the configurations chosen for rivals where they were run, it has" if tuned else "It has"
    overtaken = near.behind_any or "none"
    highest = "all" if near.highest == near.settings else f"{near.highest} of"
    left = "\n".join(f"- {rival} {', '.join(names)}" for rival, names in near.behind.items())
    left = f"Where its mean is not the highest:\n\n{left}" if left else ""
    return f"""`{NEAR}` is clearly better than the best alone in {near.parts["gain"]} of {near.settings} settings.
The federation part of its Δ, which is what the exchange itself adds, is clearly above 0 in {near.parts["federation"]}.
{near.states[HELPED]} of {near.states.total()} client-runs were clearly helped and {near.states[HARMED]} clearly harmed.
It is clearly ahead of FedAvg in {near.ahead_of_fedavg} settings.
{it_has} a higher mean than every rival in {highest} {near.settings}.
It is clearly ahead of all of them in {near.ahead_of_all}; a rival is clearly ahead of it in {overtaken}.
{left}"""


def against_other_baselines(every: list[Setting]) -> str:
    """The same client-runs against a baseline that nothing has to choose, and against one that the loss chooses."""
    larger, states = [], Counter[str]()
    for one in every:
        values = {
            (seed, c["id"]): c["chosen"]["value"]
            for seed, twin in one.by[f"{NEAR}@alone"].items()
            for c in twin["clients"]
        }
        known = [(c.client, pair) for c in one.taken_apart[NEAR].clients for pair in zip(c.seeds, c.alone, strict=True)]
        larger.append(float(np.mean([values[seed, client] - best.value for client, (seed, best) in known])))
        states += judged_against_twins(one)[NEAR]
    found = [one.taken_apart_by_loss[NEAR] for one in every]
    by_loss = sum((Counter(method.states) for method in found), Counter())
    clear = sum(method.summary["gain"]["interval"][0] > 0 for method in found)
    return f"""The best alone is not always the hardest baseline: validation rows are few, and with fewer than {FEW} it
is plain Local. The twin of `{NEAR}`, which exchanges nothing and which a site could use without
choosing among methods, is stronger on average in {sum(x > 0 for x in larger)} of {len(every)} settings, by
{100 * float(np.mean(larger)):.1f} points over all settings. Compared with this twin after the last round,
{states[HELPED]} of {states.total()} client-runs are clearly helped and {states[HARMED]} clearly harmed.

Where validation [loss instead of accuracy](metrics.md#what-is-made-of) chooses the best alone, {by_loss[HELPED]} are
clearly helped and {by_loss[HARMED]} clearly harmed, and `{NEAR}` is clearly better than the best alone in {clear} of
{len(every)} settings."""


def judged_against_twins(one: Setting) -> dict[str, Counter[str]]:
    """By method: the states of its client-runs against its twin, after the last round; Holm's method is over all."""
    runs = [
        (label, record, one.by[twin][seed])
        for label in one.by
        if (twin := f"{label}@alone") in one.by
        for seed, record in one.by[label].items()
    ]
    pairs = [
        (label, compared([rows_of(record, k)], [rows_of(twin, k)], record["metric"]))
        for label, record, twin in runs
        for k in range(len(record["clients"]))
    ]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    verdicts = judge([pair for _, pair in pairs if pair is not None])
    for (label, _), verdict in zip(pairs, verdicts, strict=True):
        found[label][verdict.state] += 1
    return found


def variants(every: list[Setting]) -> str:
    """Second-opinion-near against second-opinion."""
    leads = {one.in_brackets: one.lead(BASE) for one in every}
    ahead = [100 * float(np.mean(lead)) for lead in leads.values() if clearly_above(lead)]
    lost = {name: [-x for x in lead] for name, lead in leads.items()}
    behind = [f"{name} by {with_interval(lead).lstrip('+')}" for name, lead in lost.items() if clearly_above(lead)]
    mean = 100 * float(np.mean([np.mean(lead) for lead in leads.values()]))
    base = standing(every, BASE)
    return f"""`{NEAR}` trains and sends the same as `{BASE}`, but its clients
[use the averaged proxy differently](method.md#near). It is {mean:.2f} points ahead of `{BASE}` on average:
clearly ahead in {len(ahead)} of {len(leads)} settings, by {min(ahead):.1f} to {max(ahead):.1f} points, and clearly
behind in {f"{len(behind)}: {', '.join(behind)} points" if behind else "none"}. This page leads with it because it did
better on these very seeds, which flatters it a little. `{BASE}` clearly helped {base.states[HELPED]} client-runs and
clearly harmed {base.states[HARMED]}, was clearly better than the best alone in {base.parts["gain"]} settings, had a
higher mean than every rival in {base.highest}, and a rival was clearly ahead of it in {base.behind_any}."""


def with_a_choice(every: list[Setting]) -> str:
    """Of the client-runs with enough validation rows to choose the best alone, how many are clearly helped."""
    chosen = []
    for one in every:
        rows = {(seed, c["id"]): c["n_val"] for seed, r in one.by[NEAR].items() for c in r["clients"]}
        judged = one.taken_apart[NEAR].clients
        chosen += [c.verdict.state for c in judged if c.verdict and rows[c.seeds[0], c.client] >= FEW]
    helped = f"{chosen.count(HELPED)} of {len(chosen)}"
    return f"Of the client-runs with {FEW} validation rows or more, {helped} are clearly helped."


def one_model(every: list[Setting]) -> str:
    """What the model that was taught by the mixture keeps of its Δ, of its gain and of what it owes to others."""
    lines = ["| data | passes a round | Δ | gain over the best alone | federation |", "| --- |" + " ---: |" * 4]
    few: dict[str, list[float]] = {part: [] for part in ("delta", "gain", "federation")}
    whole: dict[str, dict[tuple[int, int], dict[str, list[float]]]]
    whole = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for one in every:
        mixture = one.taken_apart[BASE].summary
        for label, runs in (one.by | one.other_configurations).items():
            if label.split(" (")[0] != TAUGHT:
                continue
            seeds = sorted(set(one.by[BASE]) & set(runs))
            both = {"delta": [float(one.deltas(name, seeds).mean()) for name in (BASE, label)]}
            taught = one.taken_apart_with(label).summary
            both |= {part: [mixture[part]["mean"], taught[part]["mean"]] for part in few if part in taught}
            kept = {part: 100 * after / before for part, (before, after) in both.items()}
            given = dict[str, Any](next(iter(runs.values()))["params"])
            taught_in = given.get("after", 0), given["passes"]
            shares = whole[TITLES[one.dataset]][taught_in] if one.fraction == 1 else few
            for part, share in kept.items():
                shares[part].append(share)
            cells = [
                f"{points(both[part][0])} → {points(both[part][1])} ({whole_number(kept[part])} %)"
                if part in both
                else "–"
                for part in few
            ]
            lines.append(f"| {one.name} | {passes(*taught_in)} | " + " | ".join(cells) + " |")
    with_all = "; ".join(
        f"on {title} "
        + ", ".join(
            f"{passes(*taught_in)} passes keep {span(shares['delta'])} of Δ ({span(shares['gain'])} of the gain)"
            for taught_in, shares in sorted(by_passes.items())
        )
        for title, by_passes in whole.items()
    )
    table = "\n".join(lines)
    return f"""`{TAUGHT}` ends with one model of the private architecture, taught by the mixture of
`{BASE}` on blends and patchworks of a client's own rows ([how](method.md#taught-back)). The table shows what the
mixture gives, what this model gives, and in brackets the share that it keeps. With few rows, it is taught in thirty
passes over them per round, and keeps {span(few["delta"])} of the mixture's Δ in {len(few["delta"])} settings, and
{span(few["gain"])} of its gain over the best alone. With all rows thirty passes take ten times as long. What was run
there: {with_all}.

The images that teach this model are shifted by a few pixels, which those of other methods are not. Its twin is taught
in the same way, so the federation column is free of that: of what the exchange adds, this model keeps
{span(few["federation"])}. A dash: the twin was not run, so part of what is kept may be due to the shifts.

{table}"""


def whole_number(share: float) -> str:
    return f"{share:.0f}".replace("-", "−")


def passes(after: int, each: int) -> str:
    """How many a round has, from which on."""
    return f"{each} (from round {after + 1} on)" if after else str(each)


def span(shares: list[float]) -> str:
    least, most = whole_number(min(shares)), whole_number(max(shares))
    return f"{least} %" if least == most else f"{least} to {most} %"


def by_method(one: Setting, show: Callable[[float], str] = points, best: Literal[1, -1] = 1) -> list[str]:
    """What each method gave, the best first: the highest, or with -1 the lowest."""
    lines = ["| method | Δ | recipe | federation | gain over the best alone |", "| --- | ---: | ---: | ---: | ---: |"]
    found = sorted(one.taken_apart.values(), key=lambda method: -best * method.summary["delta"]["mean"])
    for method in found:
        parts = [method.summary.get(part) for part in ("delta", "recipe", "federation", "gain")]
        cells = ["–" if p is None else show(p["mean"]) + interval(p["interval"], show) for p in parts]
        if method.label in TRAINS_AS_LOCAL:
            cells[1:3] = "none", cells[0]
        lines.append(f"| {method.label} | " + " | ".join(cells) + " |")
    return lines


def as_good(every: list[Setting]) -> list[str]:
    """Methods with as low a mean error as second-opinion, or a lower one, in each of these settings."""
    means = [{label: method.summary["delta"]["mean"] for label, method in one.taken_apart.items()} for one in every]
    return [x for x in means[0] if x != BASE and all(mean.get(x, np.inf) <= mean[BASE] for mean in means)]


def photographs(every: list[Setting]) -> str:
    counts, lower = [], []
    for one in every:
        states, title = one.taken_apart[BASE].states, TITLES[one.dataset]
        helped = f"{states['helped']} of {sum(states.values())} client-runs"
        counts.append(f"On {title} `{BASE}` clearly helps {helped} and clearly harms {states['harmed']}.")
        lower.append(f"{' and '.join(f'`{label}`' for label in as_good([one])) or 'none'} on {title}")
    said = f"""A grade from 0 to 4 is predicted from a photograph. This is a regression, so Δ is in RMSE and lower is
better. Six clients at α=0.5, 25 rounds, five seeds. Both datasets have the same photographs (at 28x28 and 224x224), so
one does not confirm the other.
{chr(10).join(counts)}
Other methods with the same mean error or a lower one: {", ".join(lower)}."""
    tables = [
        "\n".join([f"{TITLES[one.dataset]}, {one.rows:.0f} rows per client:", "", *by_method(one, rmse, -1)])
        for one in every
    ]
    return "\n\n".join([said, *tables])


def near_on_photographs() -> str:
    """Of the runs on a CPU, which stand beside no others."""
    found = {one.label: one.summary for one in analyse(records("photographs"))}

    def part(label: str, name: str) -> str:
        return rmse(found[label][name]["mean"]) + interval(found[label][name]["interval"], rmse)

    return f"""`{NEAR}` was run on RetinaMNIST only, on a CPU in fp32 and measured after the last round. Its Δ is
{part(NEAR, "delta")}, of which federation is {part(NEAR, "federation")}, and its gain over the best
alone {part(NEAR, "gain")}. In the same runs the Δ of `{BASE}` is {part(BASE, "delta")}, and that of
FedAvg {part("fedavg", "delta")} (`fedekd run --dataset retinamnist --alpha 0.5 --methods
{BASE},{NEAR},fedavg --alone menu --seeds 0-4 --rounds 25 --epochs 2 --batch-size 64 --lr 1e-3
--measure-every 25 --out results/photographs`)."""


def short_training() -> str:
    """Second-opinion in the paper's regression cells, with what a site could do alone from the paper's study."""
    own = records("regression")
    cells = {(r["dataset"], r["alpha"]) for r in own}
    alone = [r for r in records("paper") if (r["dataset"], r["alpha"]) in cells and r["label"].startswith("local")]
    heads = "Δ", "recipe", "federation", "gain over the best alone"
    lines = ["| data | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for one in analyse([*alone, *(r for r in own if r["label"] != "local")]):
        parts = [one.summary[part] for part in ("delta", "recipe", "federation", "gain")]
        shown = [rmse(part["mean"]) + interval(part["interval"], rmse) for part in parts]
        lines.append(f"| {TITLES[one.dataset]} α={one.alpha:g} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def of_hospitals(one: Setting) -> str:
    """The same in sentences."""
    found = one.taken_apart
    clear = sum(method.states["helped"] + method.states["harmed"] for method in found.values())
    clients = [c for r in one.by["local"].values() for c in r["clients"]]
    test, train = (sorted({c[part] for c in clients}) for part in ("n_test", "n_train"))
    above = [label for label, method in found.items() if method.summary["gain"]["interval"][0] > 0]
    ours = "" if found[BASE].summary["federation"]["interval"][0] > 0 else "not "
    better = f"The means of {', '.join(above)} are" if above else "No method's mean is"
    return f"""{clear or "None"} of the client-runs of these methods are clearly helped or harmed: {test[0]} to
{test[-1]} test patients are too few to show much. {better} above the best alone (95 % intervals, not corrected for
{len(found)} methods), and `second-opinion` is {ours}clearly above its twin. Its head has only {train[0]} to
{train[-1]} rows to learn from, and smoothing does not help here."""


def many_trainings() -> str:
    """Of the hospitals on many seeds, and what sharing the rows would give."""
    runs = by_label(records("hospitals"))
    seeds = sorted(runs[BASE])
    values = {label: np.array([some[seed]["mean"] for seed in seeds]) for label, some in runs.items()}

    def apart(label: str, other: str) -> list[float]:
        return list(values[label] - values[other])

    def said(label: str, other: str) -> str:
        return points(float(np.mean(apart(label, other)))) + interval(paired_interval(apart(label, other)))

    twin = f"{BASE}@alone"
    clear = "above" if clearly_above(apart(BASE, twin)) else "not clearly above"
    ahead = sorted(
        (x for x in values if "@" not in x and not x.startswith(BASE) and clearly_above(apart(x, BASE))),
        key=lambda label: -values[label].mean(),
    )
    others = " and ".join(f"`{label}` {said(label, 'local')}" for label in ahead)
    close = " and ".join(f"{with_interval(apart(label, NEAR))} (`{label}`)" for label in ahead)
    ends = [k for k in range(1, len(seeds)) if seeds[k] != seeds[k - 1] + 1]
    spans = [(int(span[0]), int(span[-1])) for span in np.split(np.array(seeds), ends)]
    return f"""Ten seeds are too few to tell. On {len(seeds)} others ({" and ".join(f"{a} to {b}" for a, b in spans)}),
which were not looked at before, the federation part of `second-opinion` is {clear} zero: {said(BASE, twin)} points. Its
recipe gives {said(twin, "local")} and its Δ is {said(BASE, "local")} (`fedekd run --dataset heart --methods
{",".join(label for label in runs if label != "local")} --seeds {",".join(f"{a}-{b}" for a, b in spans)}
--measure-every 20 --out results/hospitals`). On these 920 patients the effect is more than chance in training and
splitting, but so small that no single hospital could detect it.

`{NEAR}` has a Δ of {said(NEAR, "local")}. Its recipe gives {said(f"{NEAR}@alone", "local")} of
that, and federation {said(NEAR, f"{NEAR}@alone")}: most of it needs no exchange, and what the exchange adds
may be chance.

Methods that send the whole model have a clearly higher Δ than `{BASE}`: {others}.
Their lead over `{NEAR}` is {close}.

Hospitals differ. For each of them over the same {len(seeds)} trainings, with 95 % intervals not corrected for their
number:

{by_hospital(runs)}

At Switzerland and VA Long Beach the recipe of `{BASE}` costs more on average than the exchange gives back (at
VA Long Beach that may be chance). Its safeguard falls
back on the smoothed private model, not on Local.

For linear models there is little to gain in any case. If the hospitals could pool their rows in one table,
logistic regression would gain 0.33 points [+0.09, +0.57] over 100 splits, even with the ridge penalty and the weight of
the other hospitals' rows chosen on the test rows themselves (`python docs/make_ceiling.py`). That is not far above the
federation part of `second-opinion`."""


def by_hospital(runs: dict[str, dict[int, Record]]) -> str:
    """What each of the four had of our two methods."""
    heads = [f"{part} of `{label}`" for label in (BASE, NEAR) for part in ("Δ", "federation")]
    lines = ["| hospital | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for k, client in enumerate(next(iter(runs[BASE].values()))["clients"]):
        values = {
            label: np.array([some[seed]["clients"][k]["value"] for seed in sorted(runs[BASE])])
            for label, some in runs.items()
        }
        pairs = [(label, other) for label in (BASE, NEAR) for other in ("local", f"{label}@alone")]
        found = [list(values[label] - values[other]) for label, other in pairs]
        cells = [points(float(np.mean(one))) + interval(paired_interval(one)) for one in found]
        lines.append(f"| {client['id']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    every = settings()
    (heart,) = (one for one in every if one.dataset == "heart")
    of_photographs = [one for one in every if one.records[0]["task"] == "regression"]
    every = [one for one in every if one is not heart and one not in of_photographs]
    tuned = Tuned(every)
    (HOME / "docs" / "images" / "joining.svg").write_text(figure(every))
    tables = "\n\n".join(
        "\n".join(rivals([one for one in every if one.dataset == dataset]))
        for dataset in dict.fromkeys(one.dataset for one in every)
    )
    others = " and ".join(f"`{label}`" for label in as_good(of_photographs))
    text = f"""# Should my site join?

<!-- made by docs/make_joining.py -->

On images, join if your site has few rows, with a method that learns from the shared model's features rather than taking
its labels on trust: [`{NEAR}`](method.md#near), the variant of
[`second-opinion`](method.md#second-opinion) that did best. With twenty sites FedAvg with a last layer tuned by each
site (`fedavg-tuned` with `part=head`) is worth trying too, and with plenty of rows Ditto: each had a higher mean in
some of these settings, but in none clearly. Both send the whole model, so all sites need the same architecture, and
send 1.2 to 1.4 times as many bytes. On retinal photographs joining lowers the mean error
too{f" (with {others} as much or more)" if others else ""}, but single clients have too few test rows to
tell. On four hospitals joining is worth a few tenths of a point at most, and with `{NEAR}` most of what a
hospital gains needs no exchange. With the paper's short training, smoothed targets alone give more than FedeKD and send
nothing. Below is what we measured; [one command](#on-your-own-data) measures it on your own data.

![Points over the best alone against training rows per client](images/joining.svg)

A method helps a site if it beats the best that the site can do alone. The grey line is that best: for each client, its
validation rows choose among plain training, training with smoothed targets, and the twins of methods (the same training
with nothing exchanged), where these were run; those of `second-opinion` and `{NEAR}` were run in every
setting. (The axis ends at −6 points; FedAvg falls far below.)

{said(every)}

{against_other_baselines(every)}

{variants(every)}

## With few rows, and with all
50 rounds of 2 epochs (25 rounds with all rows), Adam at 1e-3, five seeds, six clients unless stated otherwise, and the
same test rows at every size. Δ is against plain Local, in points, with 95 % intervals paired over seeds; the recipe is
what the method gives without exchanging anything, federation is what exchanging adds. Where a client has fewer than 30
validation rows, its best alone is plain Local. So with 3 % of the rows or twenty clients the gain column flatters
joining; the federation column does not. {with_a_choice(every)}

{chr(10).join(apart(every))}

The other methods: Avg Δ, and in brackets how far they are behind `{NEAR}` (± half a 95 % interval;
a minus means ahead). On this page a dash means not run.

{tables}

`second-opinion` was designed on seeds 100 and 101 of OrganAMNIST, which do not count here but deal out the same
images. `{NEAR}` was designed on seeds 100 to 139 of `heart` and then tried on these two. FashionMNIST and
CIFAR-10 were not looked at before. All methods share one learning rate, chosen on the validation rows of
seed 100: Local, smoothed Local, FedAvg, FedRep and FML were tried there at 1e-3 and 3e-4, the first two at the
paper's 1e-4 too. The larger rate was better except for plain Local and FML in some settings. At the paper's rate and
with so few rows, no method trains to convergence, FedAvg least of all.

`fedekd study joining --dry-run --device cuda --precision bf16 --out results/joining` counts the runs that have not been
made (`heart` was run on a CPU, so leave device and precision out for it).

### Were the rivals tuned?
Each was tried in three configurations on a tenth of OrganAMNIST, on seeds 100 and 101 (`fedekd study
results/tuning/study.toml --device cuda --precision bf16`). The table shows the configuration with the lowest validation
loss at the chosen rounds; how many points more it gives on those seeds' test rows than the study's configuration does;
and how far both are behind `{NEAR}`, always with its defaults, on seeds 0 to 4.
{tuned.said()}
{tuned.by_accuracy()}

{chr(10).join(tuned.table())}

Each configuration that was chosen at either α, and FedRoD's that validation accuracy would have chosen, was then run
in every setting with few rows, on seeds 0 to 4, and counts wherever this page compares with rivals. The nearest comes
first: in `fedavg-tuned (part=head)` each client trains the last layer of FedAvg's model before it predicts.

{chr(10).join(tuned.with_few_rows())}

On a regression, scikit-learn's `diabetes` (six clients with about 44 training rows each, α=0.5, 10 rounds, seeds 0 to
4; Δ in RMSE, lower is better), `second-opinion` has a Δ of −9.65 [−15.27, −4.03], of which federation is −6.11
[−9.74, −2.47]; FedeKD has −6.15, FML −10.16 and FedAvg −11.60 (`fedekd run --dataset diabetes --alpha 0.5 --methods
second-opinion,second-opinion@alone,fedekd,fedavg,fml --seeds 0-4`).

## Photographs of retinas
{photographs(of_photographs)}

{near_on_photographs()}

With the paper's own training (5 rounds at 1e-4, about twenty steps in all) and ten seeds, `second-opinion` lowers the
error too, but would do nearly all of that without exchanging anything: in so few steps a network learns less than a
ridge head does (`fedekd study results/regression/study.toml --device cuda --precision bf16`).

{short_training()}

## One model instead of a mixture
{one_model(every)}

## Four real hospitals
`heart` has 920 patients. 20 rounds at 3e-4 (the best of 3e-4, 1e-3 and 3e-3 for Local on validation rows of seeds 100
to 104), ten seeds. {of_hospitals(heart)}

{chr(10).join(by_method(heart))}

{many_trainings()}

## How much of FedeKD's gain is federation
The paper's settings (5 rounds of 2 epochs at 1e-4), ten seeds; means with 95 % intervals paired over seeds.

{chr(10).join(controls())}

A teacher whose outputs are shuffled across samples, and so say nothing about any of them, often gives as much or more.
Over all splits:

{chr(10).join(over_splits())}

{longer(every)}

## On your own data
```sh
fedekd run --dataset heart --methods second-opinion-near,fedavg --alone menu --folds 3 --rounds 2
```
This ends in a verdict for each site: join, stay alone or undecided, with the reason.
"""
    (HOME / "docs" / "joining.md").write_text(text)


if __name__ == "__main__":
    main()
