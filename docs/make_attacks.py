"""Measure what bad sites do to the others, and write the tables in docs/attacks.md.

    python docs/make_attacks.py --measure     train what benchmarks/results/attacks.jsonl lacks: minutes on one core
    python docs/make_attacks.py               write the page from it

Digits, six clients (Dirichlet 0.5), 10 rounds, small models of one hidden layer. Bad clients train as the others do and
spoil what they send, or spoil their rows. The server is that of a simulation, with the checks on uploads that a real
server makes (`fedekd.upload_checks`), or without them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedekd.engines.serial import Serial
from fedekd.exchange import Aggregator, Message
from fedekd.federation import Federation
from fedekd.methods.base import Exchange
from fedekd.runs.plan import make_job, plan
from fedekd.settings import make_settings
from fedekd.upload_checks import UploadChecks

HOME = Path(__file__).resolve().parents[1]
RECORDS, PAGE = HOME / "benchmarks" / "results" / "attacks.jsonl", HOME / "docs" / "attacks.md"
CLIENTS, SEEDS, TARGET = 6, (0, 1, 2), 0
METHODS, COMBINATIONS = ("fedavg", "ditto", "fedekd"), ("mean", "trimmed", "median", "krum")
Spoil = Callable[[Tensor, Tensor], Tensor]  # of what was trained and of the global model
SPOILS: dict[str, Spoil] = {
    "reversed model": lambda own, held: -4.9 * own,
    "reversed update": lambda own, held: held - (own - held),
    "update x 10": lambda own, held: held + 10 * (own - held),
    "backdoor": lambda own, held: held + 3 * (own - held),
}
ATTACKS = ("none", "reversed model", "reversed update", "update x 10", "flipped labels", "backdoor")


def small(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 64), nn.ReLU(), nn.Linear(64, outputs))


@dataclass(frozen=True)
class Case:
    method: str
    attack: str
    bad: int
    """How many of the clients, the first ones."""
    combine: str
    checks: bool
    seed: int


class AttackedFederation(Serial):
    """The serial engine, with clients that spoil what they send and a server that may check it."""

    attack, bad = "none", 0
    checks: UploadChecks | None = None
    refused: tuple[int, int] = (0, 0)
    """Uploads of bad and of honest clients that did not count."""

    def _answer(self, server: Aggregator, step: Exchange, messages: Sequence[Message], here: Sequence[int]) -> Any:
        if self.alone or step.send is not None:
            return super()._answer(server, step, messages, here)
        held, spoil = server.sent[step.name], SPOILS.get(self.attack)
        sent = [spoilt(m, held, spoil) if spoil and k < self.bad else m for k, m in zip(here, messages, strict=True)]
        if self.checks is not None:
            named = {str(k): {n: m[n] for n in held} for k, m in zip(here, sent, strict=True)}
            out = self.checks.refused(step.name, named, held, step.target == step.name)
            kept = [place for place, k in enumerate(here) if str(k) not in out]
            self.checks.remember(str(here[place]) for place in kept)
            bad = sum(int(k) < self.bad for k in out)
            self.refused = self.refused[0] + bad, self.refused[1] + len(out) - bad
            sent, here = [sent[place] for place in kept], [here[place] for place in kept]
        return super()._answer(server, step, sent, here)


def spoilt(message: Message, held: Message, spoil: Spoil) -> dict[str, Tensor]:
    return {n: spoil(t, held[n]) if n in held else t for n, t in message.items()}


def with_bad_rows(federation: Federation, attack: str, bad: int) -> Federation:
    """Labels turned round, or a mark in a corner that means the target class, in bad clients' training rows."""
    x, y, classes = federation.dataset.x.copy(), federation.dataset.y.copy(), federation.dataset.outputs
    for split in federation.clients[:bad]:
        if attack == "flipped labels":
            y[split.train] = classes - 1 - y[split.train]
        if attack == "backdoor":
            half = split.train[::2]
            x[half], y[half] = marked(x[half]), TARGET
    return replace(federation, dataset=replace(federation.dataset, x=x, y=y))


def marked(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[..., :2, :2] = x.max()
    return x


def federation_of(case: Case, **more: Any) -> AttackedFederation:
    given = {"dataset": "digits", "alpha": 0.5, "clients": CLIENTS, "private": small, "proxy": small, "lr": 3e-3}
    given |= {"methods": case.method, "combine": case.combine, "seeds": (case.seed,), **more}
    settings = make_settings(given)
    run = next(one for one in plan(settings) if one.name == case.method)
    rows = with_bad_rows(run.job.federation, case.attack, case.bad)
    engine = AttackedFederation(make_job(settings, rows, run.job.method, case.seed))
    engine.attack, engine.bad = case.attack, case.bad
    engine.checks = UploadChecks() if case.checks else None
    return engine


def fooled(engine: AttackedFederation) -> float:
    """The share of honest clients' marked test rows, of other classes, that are answered with the target class."""
    found = []
    for client in list(engine.clients)[engine.bad :]:
        with client.personalised():
            rows = client.rows["test"][client.data.y[client.rows["test"]] != TARGET]
            x = client.data.x.clone()
            x[rows] = torch.from_numpy(marked(x[rows].cpu().numpy())).to(x)
            whole, client.data = client.data, replace(client.data, x=x)
            found.append(client.predictions(rows, "test").argmax(1) == TARGET)
            client.data = whole
    return float(torch.cat(found).float().mean())


def measured(case: Case) -> dict[str, Any]:
    engine = federation_of(case)
    for _ in range(engine.job.training.rounds):
        engine.round()
    values = engine.evaluate()[0][case.bad :]
    refused = {"bad": engine.refused[0], "honest": engine.refused[1]}
    return {**asdict(case), "accuracy": float(np.mean(values)), "fooled": fooled(engine), "refused": refused}


def cases() -> list[Case]:
    attacks = [("none", 0), *((attack, bad) for attack in ATTACKS[1:] for bad in (1, 2))]
    ways = [("mean", False), *((combine, True) for combine in COMBINATIONS)]
    return [
        Case(method, attack, bad, combine, checks, seed)
        for seed in SEEDS
        for method in METHODS
        for attack, bad in attacks
        for combine, checks in ways
    ]


def records() -> dict[Case, dict[str, Any]]:
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    names = Case.__dataclass_fields__
    return {Case(**{n: one[n] for n in names}): one for one in map(json.loads, lines)}


def measure() -> None:
    torch.set_num_threads(1)
    known = records()
    for case in cases():
        if case not in known:
            with RECORDS.open("a") as file:
                file.write(json.dumps(measured(case)) + "\n")


# --- the page --------------------------------------------------------------------------------------------------------


def table(method: str, known: dict[Case, dict[str, Any]]) -> str:
    heads = [method, "bad of 6", "mean, no checks", *(f"{c}" for c in COMBINATIONS), "refused of the bad"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for attack, bad in dict.fromkeys((case.attack, case.bad) for case in cases()):
        cells = []
        for combine, checks in (("mean", False), *((c, True) for c in COMBINATIONS)):
            found = [known[Case(method, attack, bad, combine, checks, seed)] for seed in SEEDS]
            cell = f"{100 * np.mean([one['accuracy'] for one in found]):.1f}"
            if attack == "backdoor":
                cell += f" ({100 * np.mean([one['fooled'] for one in found]):.0f})"
            cells.append(cell)
        mean = [known[Case(method, attack, bad, "mean", True, seed)] for seed in SEEDS]
        share = sum(one["refused"]["bad"] for one in mean) / (10 * len(SEEDS) * bad) if bad else None
        cells.append("" if share is None else f"{100 * share:.0f} %")
        lines.append([attack, str(bad or ""), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str) -> str:
    known = records()
    honest = sum(one["refused"]["honest"] for one in known.values())
    without = sum(one["refused"]["honest"] for one in known.values() if one["attack"] == "none")
    said = (
        f"{len(known)} runs. The checks refused {without} uploads in the "
        f"{sum(c.attack == 'none' and c.checks for c in known)} "
        f"honest ones, and {honest - without} of honest clients beside bad ones."
    )
    made = "\n\n".join([*(table(method, known) for method in METHODS), said])
    new, count = re.subn(
        r"(<!-- made by docs/make_attacks.py -->\n).*?(\n<!-- end -->)", rf"\g<1>{made}\g<2>", text, flags=re.DOTALL
    )
    if not count:
        raise SystemExit(f"{PAGE} has no place for the tables")
    return new


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        measure()
    PAGE.write_text(page(PAGE.read_text()))
    print(f"wrote {PAGE}")
