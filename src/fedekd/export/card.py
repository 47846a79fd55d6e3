"""The model card: what a site should know of its private model before it uses it, on one page of Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedekd.runs import choice_file
from fedekd.runs.aggregate import shared_settings
from fedekd.runs.alone import alone_run, is_menu
from fedekd.runs.choosing import choice_of
from fedekd.runs.federation_report import SECURE, SUMS, SiteReport, signed_lines, site_report
from fedekd.runs.metadata import ModelMetadata
from fedekd.runs.records import Record
from fedekd.runs.subgroups import HEADS, by_subgroup
from fedekd.runs.transfer import ClientTransfer, MethodTransfer, analyse
from fedekd.runs.verdict_text import (
    STATES,
    STAY,
    advice_by_client,
    advise,
    alone_label,
    caveats,
    interval,
    menu,
    site_menu,
)
from fedekd.units import Unit

MOST_NAMES = 60
ROWS = {"train": "to train", "val": "to validate", "test": "to test"}
SCALED = {
    "pooled": "standardised by the federation's pooled training rows",
    "own": "standardised by this client's own training rows",
    "given": "as the federation's schema gives it",
}
LIMITS = (
    "",
    "The figures above are from this client's own held-out rows. They say nothing about patients, devices or pictures",
    "that differ from those. The model has not been validated for any clinical use. A model can reveal something of",
    "the rows that it was trained on: give it only to those who may see them.",
)


def card_path(model: Path) -> Path:
    """Beside the model: west.card.md for west.onnx."""
    return model.with_suffix(".card.md")


def make_card(metadata: ModelMetadata, records: Sequence[Record], file: str, folder: Path | None = None) -> str:
    """``records`` are those of the model's ``folder``, with the run's unless it is gone; ``file`` is the model's."""
    record = _own(metadata, records)
    sections = {
        "Did joining help?": _comparison(metadata, records, folder),
        "Data": _data(metadata, record),
        "Inputs": _inputs(metadata),
        "Output": [*_answers(metadata), *_output(metadata)],
        "Training": [*_training(metadata, record), *(f"- {line}" for line in _of_federation(metadata, folder))],
        "Use": [f"`fedekd predict {file} FILE`: a class and its probability for each row, or a number.", *LIMITS],
    }
    title = (
        f"# Private model of client {metadata.client}: {metadata.about.get('dataset', 'own data')}, {metadata.method}"
    )
    parts = [title, f"The file is `{file}`.", *(f"## {name}\n" + "\n".join(lines) for name, lines in sections.items())]
    return "\n\n".join(parts) + "\n"


def _own(metadata: ModelMetadata, records: Sequence[Record]) -> Record | None:
    return next((record for record in reversed(records) if record["key"] == metadata.about.get("key")), None)


def _same(own: Record, records: Sequence[Record]) -> list[Record]:
    """The records that stand in one table with a run's."""
    same = [r for r in records if (r["dataset"], r["alpha"]) == (own["dataset"], own["alpha"])]
    return [r for r in same if shared_settings(r) == shared_settings(own)]


def _analysed(
    metadata: ModelMetadata, records: Sequence[Record], folder: Path | None
) -> tuple[list[MethodTransfer], ClientTransfer | None]:
    """What the page of the same folder is made from, and this client with this method in it."""
    own = _own(metadata, records)
    if own is None:
        return [], None
    methods = analyse(_same(own, records), folder)
    of = [client for method in methods if method.label == own["label"] for client in method.clients]
    return methods, next((c for c in of if c.client == metadata.client and own["seed"] in c.seeds), None)


def best_alone(metadata: ModelMetadata, records: Sequence[Record], folder: Path | None) -> tuple[str, str | None]:
    """What this client did best alone, beside this model: its label, and the run's key where there is a record."""
    if (own := _own(metadata, records)) is not None:
        position = [row["id"] for row in own["clients"]].index(metadata.client)
        best = alone_run(_same(own, records), position, own["seed"], folder)
        return (best["label"], best["key"]) if best else ("local", None)
    site = _site(metadata, folder)
    return (site["alone"]["label"] if site is not None and "alone" in site else "local"), None


def _comparison(metadata: ModelMetadata, records: Sequence[Record], folder: Path | None) -> list[str]:
    value, local, delta = (metadata.number(name) for name in ("value", "local", "delta"))
    alone = {"metric": metadata.about.get("metric", "accuracy"), "clients": [{"local": local}]}
    unit = Unit.of([_own(metadata, records) or alone])
    percent, points = (" %", " points") if unit.percent else ("", "")
    _, client = _analysed(metadata, records, folder)
    several = client is not None and len(client.seeds) > 1  # then the verdict is over more than this model
    rows = f"this model's {metadata.about.get('n_test', '?')}" if several else "its"
    lines = [
        f"| {unit.name} on {rows} test rows | |",
        "| --- | --- |",
        f"| trained alone (Local) | {unit.value(local)}{percent} |",
        f"| {metadata.method} | {unit.value(value)}{percent} |",
        f"| **Δ** | **{unit.delta(delta)}{points}** |",
    ]
    if metadata.round and metadata.round[0] != metadata.round[1]:
        when = "this model: after round {} of {}".format(*metadata.round)
        lines.append(f"| {when} | {unit.value(metadata.number('value_at_round'))}{percent} |")
    if client is not None and client.verdict is not None:
        gain = f"{unit.delta(client.parts['gain'])}{points}, 95 % interval {interval(client.verdict, unit)}"
        over = f", on {client.n_test:,} test rows over {len(client.seeds)} seeds" if several else ""
        lines.append(f"| gain over the best alone ({_plain(alone_label(client))}){over} | {gain} |")
    elif (site := _of_site(metadata, folder)) is not None and "gain" in site and "alone" in site:
        best = f"{site['alone']['label']} after round {site['alone']['round']}"
        lines.append(f"| gain over the best alone ({_plain(best)}) | {unit.delta(site['gain'])}{points} |")
    return [*lines, "", verdict(metadata, records, folder), *_subgroups(metadata, records, folder)]


def _subgroups(metadata: ModelMetadata, records: Sequence[Record], folder: Path | None) -> list[str]:
    own = _own(metadata, records)
    found = by_subgroup(_same(own, records), folder) if own else []
    lines: list[str] = []
    for method in (one for one in found if one.label == metadata.method):
        rows = [HEADS, ("---",) * len(HEADS), *method.cells()]
        table = [f"| {' | '.join(map(_plain, row))} |" for row in rows]
        told = f"{method.told[0].upper()}{method.told[1:]}."
        lines += ["", f"{_plain(method.title)}:", "", *table, "", _plain(told)]
    return lines


def verdict(metadata: ModelMetadata, records: Sequence[Record], folder: Path | None = None) -> str:
    """Whether the federation helped this client, and what it should do: as terminal and page of its folder say it."""
    if is_menu(metadata.method):
        return _trained_alone(metadata, records, folder)
    methods, client = _analysed(metadata, records, folder)
    if client is None or client.verdict is None:
        return _told_by_site(metadata, folder) or _by_sign(metadata)
    unit = Unit.of([r for r in records if r["key"] == metadata.about.get("key")])
    own = advise({metadata.method: client.verdict}, alone_label(client), unit)
    best = advice_by_client(methods, unit)[client.client, client.seeds]
    why = "" if best.reason == own.reason else f": {best.reason}"
    words = [
        f"{metadata.method}: {STATES[client.verdict.state]}: {own.reason}.",
        f"Should this client join? {best.decision.capitalize()}{why}.",
    ]
    if best.decision == STAY:
        words.append(_best_alone(records, folder))
    return "\n\n".join(map(" ".join, (words, caveats(methods, unit))))


def _best_alone(records: Sequence[Record], folder: Path | None) -> str:
    """How to get it, by the choice that this card was made with."""
    by = choice_of(records)
    option = f" --chosen-by {by}" if folder is not None and by != choice_file.read(folder) else ""
    return f"The best model it trained alone is `--method alone{option}`."


def _trained_alone(metadata: ModelMetadata, records: Sequence[Record], folder: Path | None) -> str:
    label, key = best_alone(metadata, records, folder)
    if metadata.method != label or key not in (None, metadata.about.get("key")):
        return f"This is a model the client trained alone. {_best_alone(records, folder)}"
    best = "model" if label == "local" else "best model"
    words = [f"This is the {best} the client trained alone{', by its validation rows' * (best != 'model')}."]
    if (own := _own(metadata, records)) is not None:
        methods = analyse(_same(own, records), folder)
        found = advice_by_client(methods, Unit.of([own]))
        words += [_asked(*one) for (name, on), one in found.items() if name == metadata.client and own["seed"] in on]
        words += [menu(one) for one in methods[:1] if len(one.menu) > 1]
    elif (site := _site(metadata, folder)) is not None and "verdict" in site:
        words += [_asked(site["verdict"]["recommendation"], site["verdict"]["reason"]), *site_menu(site)]
    return " ".join(words)


def _asked(decision: str, reason: str) -> str:
    return f"Should this client join? {decision.capitalize()}: {reason}."


def _of_site(metadata: ModelMetadata, folder: Path | None) -> SiteReport | None:
    """With this method."""
    found = _site(metadata, folder)
    return found if found is not None and found["method"] == metadata.method else None


def _site(metadata: ModelMetadata, folder: Path | None) -> SiteReport | None:
    """A real site keeps no records: what it found at the end of its federation."""
    found = site_report(folder) if folder else None
    return found if found is not None and found["name"] == metadata.client else None


def _of_federation(metadata: ModelMetadata, folder: Path | None) -> list[str]:
    site = _of_site(metadata, folder)
    saw = [f"the federation's server saw {SUMS}"] if site and site.get("aggregation") == SECURE else []
    return [*saw, *(signed_lines(folder) if folder else [])]


def _told_by_site(metadata: ModelMetadata, folder: Path | None) -> str | None:
    site = _of_site(metadata, folder)
    if site is None or "verdict" not in site or site["verdict"]["state"] not in STATES:
        return None
    found = site["verdict"]
    words = [
        f"{metadata.method}: {STATES[found['state']]}: {found['reason']}.",
        f"Should this client join? {found['recommendation'].capitalize()}.",
        *site_menu(site),
        "One federation tells you about these trained models, not about the method.",
    ]
    if found["recommendation"] == STAY:
        words.insert(2, _best_alone([], folder))
    return " ".join(words)


def _by_sign(metadata: ModelMetadata) -> str:
    """What can be said where no record holds the test rows."""
    delta = metadata.number("delta")
    unit = Unit(metadata.about.get("metric", "accuracy"), 1)
    if math.isnan(delta):
        return "Whether joining helped is not known: the file does not say its Δ."
    if abs(delta) < 1e-12:
        return f"{metadata.method} made no difference to this client."
    effect = "better" if unit.harm(delta) < 0 else "worse"
    return (
        f"With {metadata.method} this client is {effect} off by sign alone: there is no record of its test rows to say "
        "whether that is more than chance. The model it trained alone is `--method local`."
    )


def _data(metadata: ModelMetadata, record: Record | None) -> list[str]:
    split = record["partition"] if record else None
    how = {"sites": "real sites", "iid": "dealt out at random"}.get(split["kind"], "") if split else ""
    if split and split["kind"] == "dirichlet":
        how = f"dealt out by a Dirichlet distribution, α = {split['alpha']}, seed {split['seed']}"
    sizes = [f"{metadata.about.get('n_' + part, '?')} {name}" for part, name in ROWS.items()]
    fold = f", in fold {split.get('fold', 0) + 1} of {split['folds']}" if split and "folds" in split else ""
    lines = [f"- dataset: {metadata.about.get('dataset', '?')}", f"- rows of this client: {', '.join(sizes)}{fold}"]
    return [*lines, f"- clients: {split['clients']}, {how}"] if split and how else lines


def _inputs(metadata: ModelMetadata) -> list[str]:
    kind = "a picture [channels, height, width]" if len(metadata.shape) == 3 else "a row of numbers"
    lines = [f"- raw, as in the user's files: {kind} of shape {list(metadata.shape)}; the scaling is the model's own"]
    gain, shift = metadata.scale
    if metadata.top is not None:
        lines.append(f"- scaling: pixels of 0..{metadata.top:g} become -1..1")
    else:
        how = SCALED.get(str(metadata.about.get("scaled_by")), SCALED["pooled"])
        lines.append(f"- scaling: {how}, input = raw × gain + shift")
    if metadata.fill is not None:
        lines.append("- a missing number is filled with its mean over training rows; a missing text is no category")
    if metadata.columns:
        lines += ["", "| column | gain | shift |", "| --- | --- | --- |"]
        rows = zip(metadata.columns, *(np.broadcast_to(a, metadata.shape) for a in (gain, shift)), strict=True)
        lines += [f"| {_plain(name)} | {g:.6g} | {s:.6g} |" for name, g, s in list(rows)[:MOST_NAMES]]
        lines += [f"| and {len(metadata.columns) - MOST_NAMES} more | | |"] * (len(metadata.columns) > MOST_NAMES)
    return lines


def _answers(metadata: ModelMetadata) -> list[str]:
    """What the file answers with."""
    own = metadata.answers
    if own is None:
        tuned = (
            f", after what {metadata.method} has a client do before it answers"
            if metadata.about.get("personalised")
            else ""
        )
        return [f"- the answer is the private model's{tuned}"]
    by = ", ".join(f"{name} {value}" for name, value in own.parameters.items())
    parts = [f"the {_and(own.roles)} model{'s' * (len(own.roles) > 1)}"] if own.roles else []
    kinds = {"memory": "remembers", "received": "has received", "gradients": "has gathered as gradients"}
    for kind, verb in kinds.items():
        names = dict.fromkeys(name.split("/")[1] for name in own.knows if name.startswith(f"{kind}/"))
        parts += [f"what the client {verb} ({', '.join(map(_plain, names))})"] if names else []
    lines = [f"- the answer is made by {_plain(own.method)}{f' ({_plain(by)})' if by else ''} from {_and(parts)}"]
    if own.keeps_rows:
        count = metadata.about.get("n_train", "?")
        lines.append(f"- **the file holds the {count} training rows of this client** in the form that the method keeps")
        lines.append("  (features and targets): guard it as you guard those rows")
    return lines


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(map(_plain, words[:-1])), *map(_plain, words[-1:]))))


def _output(metadata: ModelMetadata) -> list[str]:
    if not metadata.classifies:
        mean, std = metadata.target
        return [f"- a number in the target's units: model output × {std:.6g} + {mean:.6g}"]
    more = [f"and {len(metadata.labels) - MOST_NAMES} more"] * (len(metadata.labels) > MOST_NAMES)
    names = ", ".join([*map(_plain, metadata.labels[:MOST_NAMES]), *more])
    return [f"- probabilities of {metadata.outputs} classes: {names}"]


def _training(metadata: ModelMetadata, record: Record | None) -> list[str]:
    params = {name: value for name, value in record["params"].items() if value is not None} if record else {}
    lines = [f"- method: {metadata.method}, seed {metadata.seed}, run {metadata.about.get('key', '?')}"]
    lines += [f"- {', '.join(f'{name} {value}' for name, value in params.items())}"] if params else []
    proxy = metadata.answers and metadata.answers.proxy
    architecture = f"- architecture: `{metadata.model}`" + (f", proxy `{proxy}`" if proxy else "")
    return [*lines, architecture, f"- made with fedekd {metadata.about.get('fedekd', '?')}"]


def _plain(name: str) -> str:
    """A name that cannot break the table or the page it stands in."""
    return " ".join(name.replace("|", "\\|").replace("<", "&lt;").split())
