"""What a site has at the end: its numbers and its model on its own disk, and the part of the numbers that leaves."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedekd import scores
from fedekd.engines.client import Client
from fedekd.flower.protocol.codes import StatusCode, failing
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.wire import Word
from fedekd.flower.saved_state import write_text
from fedekd.flower.settings import SiteSettings
from fedekd.flower.site.alone import LOCAL, AloneMenu
from fedekd.flower.site.chosen_round import ChosenRound
from fedekd.runs import packing, saved_models
from fedekd.runs.choosing import Option, best_on_validation
from fedekd.runs.row_results import compared
from fedekd.runs.transfer import comparison
from fedekd.runs.verdict_text import OPEN, Advice, advise
from fedekd.settings import ChosenBy
from fedekd.units import Unit, count
from fedekd.verdicts import EQUIVALENT, HARMED, UNDECIDED, Verdict, judge

log = logging.getLogger("fedekd.site")


def finish(
    site: SiteSettings, folder: Path, terms: Terms, client: Client, menu: AloneMenu, rounds: ChosenRound, missed: int
) -> dict[str, Word]:
    """Write ``report.json`` and models for `fedekd export`: the federation's, plain Local and the best alone.

    Returns what is shared. The client is to be as it answers: see ``Client.personalised``. ``missed``: how many rounds
    the site was away.
    """
    local = menu.local()
    with client.personalised(), local.personalised():  # measured and kept after one and the same training
        return _finish(site, folder, terms, client, local, menu, rounds, missed)


def _finish(
    site: SiteSettings,
    folder: Path,
    terms: Terms,
    client: Client,
    local: Client,
    menu: AloneMenu,
    rounds: ChosenRound,
    missed: int,
) -> dict[str, Word]:
    method, metric, by = terms.method, client.task.metric, cast("ChosenBy", site.chosen_by)
    value, alone = client.score(), local.score()
    counts = {f"n_{split}": len(client.rows[split]) for split in ("train", "val", "test")}
    own = {"local": alone, "value": value, "delta": value - alone, **counts}
    interval = _interval(client, local)
    sure = dict(zip(("low", "high"), interval, strict=True)) if interval else {}
    judged = _judged(method, client, value, alone, menu, rounds.option(method, client), by, missed)
    whole = {"name": site.name, "method": method, "metric": metric, **own, **sure, **judged.told()}
    whole |= {"privacy": getattr(client, "privacy", None), "aggregation": terms.aggregation}
    whole |= {"chosen_by": by, "group": site.group} | ({"missed": missed} if missed else {})
    try:
        with rounds.taken(client, judged.joined), menu.taken(judged.menu[judged.best.label][0]) as alone_model:
            whole["scores"] = {"alone": _scores(alone_model), "joined": _scores(client)}
    except Exception as error:  # no verdict is about them, so that they cost the site nothing
        log.warning("other metrics than the %s could not be taken: %s", metric, error, exc_info=True)
    with failing(StatusCode.STATE):
        write_text(folder / "report.json", json.dumps(whole, indent=1) + "\n")
    _keep_models(site, folder, own, client, judged, menu, rounds)
    log.info(
        "%s on this site's test rows: alone %.4g, with the federation %.4g, difference %+.4g%s",
        *(metric, alone, value, value - alone),
        " (95 %: {:+.4g} to {:+.4g})".format(*interval) if interval else "",
    )
    log.info("%s: %s", *judged.advice)
    return _shared(site.share, whole, judged)


def _keep_models(
    site: SiteSettings,
    folder: Path,
    own: Mapping[str, Any],
    client: Client,
    judged: _Judged,
    menu: AloneMenu,
    rounds: ChosenRound,
) -> None:
    def keep(key: str, one: Option, last: float, model: Client) -> None:
        chosen = {"round": one.round, "value": one.value}
        row = {"id": site.name, **own, "value": last, "delta": last - own["local"], "chosen": chosen}
        record = {"key": key, "label": one.label, "metric": client.task.metric, "clients": [row]}
        with failing(StatusCode.STATE):
            saved_models.write(folder, record, 0, model, option="`state`")

    if client.models:
        with rounds.taken(client, judged.joined):
            keep(folder.name, judged.joined, own["value"], client)
    for label in dict.fromkeys((LOCAL, judged.best.label)):  # what a site that was harmed goes back to
        if label != judged.joined.label:
            chosen, last = judged.menu[label]
            with menu.taken(chosen) as by_itself:
                keep(f"{folder.name}-{'local' if label == LOCAL else 'alone'}", chosen, last.value, by_itself)


def _shared(share: Collection[str], report: Mapping[str, Any], judged: _Judged) -> dict[str, Word]:
    """What leaves the site: of its report what ``share`` names, and what it has spent of a privacy budget."""
    words: dict[str, Word] = {}
    if "n" in share:
        words["n"] = report["n_train"]
    if "metric" in share:
        words |= {name: report[name] for name in ("metric", "local", "value")}
    if "delta" in share:
        words |= {name: report[name] for name in ("metric", "delta", "low", "high") if name in report}
    if "verdict" in share:
        words |= {"metric": report["metric"], "state": judged.verdict.state}
        words |= {"chosen_by": report["chosen_by"]} if report["chosen_by"] != "metric" and len(judged.menu) > 1 else {}
        words |= {name: x for name, x in (("gain", judged.gain), ("p", judged.verdict.p)) if math.isfinite(x)}
    if report["privacy"]:
        words["privacy"] = json.dumps(report["privacy"])
    return words


@dataclass(frozen=True)
class _Judged:
    """The method at the round that this site ends with, beside the best that it did alone."""

    joined: Option
    best: Option
    menu: dict[str, tuple[Option, Option]]
    parts: dict[str, float]
    verdict: Verdict
    advice: Advice

    @property
    def gain(self) -> float:
        return self.joined.value - self.best.value

    def told(self) -> dict[str, Any]:
        verdict = self.verdict
        numbers = {name: getattr(verdict, name) for name in ("low", "high", "p", "margin", "detectable", "rows")}
        return {
            **self.parts,
            "gain": self.gain,
            "joined": {**_named(self.joined), "chosen": "validation"},
            "alone": {**_named(self.best), "chosen": "validation"},
            "menu": [{**_named(chosen), "last": last.value} for chosen, last in self.menu.values()],
            "verdict": {
                "state": verdict.state,
                "recommendation": self.advice.decision,
                "reason": self.advice.reason,
                **{name: x if math.isfinite(x) else None for name, x in numbers.items()},
                "rows_needed": verdict.rows_needed,
            },
        }


def _named(one: Option) -> dict[str, Any]:
    loss = one.val_loss if math.isfinite(one.val_loss) else None
    return {"label": one.label, "round": one.round, "value": one.value, "val_loss": loss}


def _interval(client: Client, local: Client) -> tuple[float, float] | None:
    """Of Δ, 95 %, over the test rows or groups of them; None where they are too few."""
    pair = compared([_test_rows(client)], [_test_rows(local)], client.task.metric, _groups(client))
    assert pair is not None
    (verdict,) = judge([pair])
    return (verdict.low, verdict.high) if math.isfinite(verdict.low) else None


def _scores(client: Client) -> dict[str, float | None]:
    """Every metric of the task on the test rows; None where it is not defined on them."""
    answered = client.answers().cpu().numpy()
    found = {score.name: score.of(answered) for score in scores.of_task(client.task.name)}
    return {name: x if math.isfinite(x) else None for name, x in found.items()}


def _test_rows(client: Client) -> np.ndarray:
    packed = packing.pack(client.errors().cpu().numpy())
    return packing.unpack(packed, len(client.rows["test"]), client.task.metric)


def _groups(client: Client) -> np.ndarray | None:
    groups = client.job.federation.dataset.groups
    return groups.codes[client.rows["test"].cpu().numpy()] if groups else None


def _judged(
    method: str,
    client: Client,
    value: float,
    local: float,
    menu: AloneMenu,
    joined: Option | None,
    by: ChosenBy,
    missed: int,
) -> _Judged:
    metric, rows, results = client.task.metric, client.rows, menu.results()
    joined = joined or Option(method, client.job.training.rounds, value, rows=_test_rows(client))
    options = [chosen for chosen, _ in results.values()]
    best = best_on_validation(options, len(rows["val"]), client.task.higher_is_better, by)
    pair = comparison([joined], [best], metric, _groups(client))
    assert pair is not None
    (verdict,) = judge([pair])
    parts = {}
    if menu.twin in results:
        twin = results[menu.twin][1].value
        parts = {"recipe": twin - local, "federation": value - twin}
    unit = Unit.of([{"metric": metric, "clients": [{"local": local}]}])
    given = best.label == LOCAL and menu.given is not None
    said = "the model trained before" if given else f"{best.label} after round {best.round}"
    advice = advise({method: verdict}, said, unit)
    if missed:
        away = f"it was away in {missed} of {count(client.job.training.rounds, 'round')}, and alone it trained in all"
        if verdict.state in (HARMED, EQUIVALENT):
            away += " of them, which may be why"
            verdict = replace(verdict, state=UNDECIDED, reason=f"{advice.reason}; {away}")
        advice = Advice(OPEN if verdict.state == UNDECIDED else advice.decision, f"{advice.reason}; {away}")
    return _Judged(joined, best, results, parts, verdict, advice)
