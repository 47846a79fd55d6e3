"""One run's records and details, looked up by method and seed: what the charts of its page are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean

from fedekd.report.html.chart import MOST, Choice, MetricScale, Row, variant
from fedekd.runs import command_file
from fedekd.runs.aggregate import SummaryRow, aggregate, in_order
from fedekd.runs.choosing import chooses_rounds
from fedekd.runs.findings import FAVOURITE
from fedekd.runs.records import ClientRow, Details, Record
from fedekd.runs.subgroups import by_subgroup
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import after
from fedekd.units import Unit


class RunData:
    """Records of one dataset, one alpha and the same settings."""

    def __init__(self, records: Sequence[Record], details: Mapping[str, Details], folder: str | Path) -> None:
        """``folder``: where the records lie."""
        self.records = in_order(list({record["key"]: record for record in records}.values()))
        self.details = details
        self.first = self.records[0]
        self.folder = Path(folder)
        self.made_by = command_file.read(folder)
        self.unit = Unit.of(self.records)
        self.scale = MetricScale(self.unit)
        self.by = {(r["label"], r["seed"]): r for r in self.records}
        self.seeds = sorted({r["seed"] for r in self.records})
        self.labels = list(dict.fromkeys(r["label"] for r in self.records))
        self.alone = next((r["label"] for r in self.records if r["method"] == "local"), None)
        self.transfer = {method.label: method for method in analyse(self.records, folder)}
        self.compared = list(self.transfer)
        self.subgroups = by_subgroup(self.records, folder)

    @property
    def after(self) -> str:
        """Which round the numbers are from, in words."""
        return after(chooses_rounds(self.first))

    @property
    def same_sites(self) -> bool:
        """Whether a client is the same on every seed; otherwise each seed deals the data out anew."""
        return bool(self.first["partition"]["kind"] == "sites")

    @property
    def one_split(self) -> bool:
        """Whether all seeds have the same clients and test rows, so that a verdict is over the seeds."""
        return len(self.seeds) > 1 and all(method.one_split for method in self.transfer.values())

    @property
    def shown(self) -> list[str]:
        """Training alone and the methods to join with, without their controls."""
        return [label for label in self.labels if label == self.alone or label in self.transfer]

    @property
    def names(self) -> list[str]:
        return [str(client["id"]) for client in self.first["clients"]]

    @cached_property
    def summary(self) -> dict[str, SummaryRow]:
        return {row["label"]: row for row in aggregate(self.records, self.folder)}

    @property
    def favourite(self) -> int:
        return self.compared.index(FAVOURITE) if FAVOURITE in self.compared else 0

    @property
    def worst_seed(self) -> int:
        """The number of the seed on which the favourite did most harm: what the page opens with."""
        if not self.compared:
            return 0
        runs = self.of(self.compared[self.favourite])
        worst = max(runs, key=lambda run: self.unit.harm(run["worst_delta"]))
        return self.seeds.index(worst["seed"])

    def choices(self) -> list[Choice]:
        choices = []
        if self.compared:
            choices.append(Choice("method", "Method", tuple(self.compared), self.favourite))
        if self.seeds:
            word = "Seed" if self.same_sites or self.first["partition"].get("fixed") else "Split (seed)"
            choices.append(Choice("seed", word, tuple(map(str, self.seeds)), self.worst_seed))
        return choices

    def floor(self, client: str, seeds: Sequence[int]) -> float | None:
        """The metric of a client that gives one answer for all its test rows, averaged over these seeds."""
        known = [floor for seed in seeds if (floor := self._floors.get((seed, client))) is not None]
        return fmean(known) if known else None

    def training_rows(self, client: str, seed: int) -> int | None:
        """How many training rows a client has; None if the seed's first record does not have the client."""
        return self._training.get((seed, client))

    @cached_property
    def _training(self) -> dict[tuple[int, str], int]:
        return {(seed, one["id"]): one["n_train"] for seed in self.seeds for one in self.clients(seed)}

    def model(self, client: str, seed: int) -> str | None:
        """Its private model; None where that is the default one."""
        return self._models.get((seed, client))

    @cached_property
    def _models(self) -> dict[tuple[int, str], str]:
        known = ((seed, one) for seed in self.seeds for one in self.clients(seed))
        return {(seed, one["id"]): one["model"] for seed, one in known if "model" in one}

    @cached_property
    def _floors(self) -> dict[tuple[int, str], float | None]:
        return {(r["seed"], c["id"]): c.get("floor") for r in self.of(self.labels[0]) for c in r["clients"]}

    def runs(self) -> Iterator[tuple[str, str, int, Record]]:
        """The runs to compare with Local: variant, label, seed, record."""
        for m, label in enumerate(self.compared):
            for s, seed in enumerate(self.seeds):
                if (label, seed) in self.by:
                    yield variant(m, s), label, seed, self.by[label, seed]

    def clients(self, seed: int) -> list[ClientRow]:
        return next((list(r["clients"]) for r in self.records if r["seed"] == seed), [])

    def of(self, label: str) -> list[Record]:
        return [self.by[label, seed] for seed in self.seeds if (label, seed) in self.by]

    def detail(self, label: str | None, seed: int) -> Details | None:
        record = self.by.get((label or "", seed))
        return self.details.get(record["key"]) if record else None

    def any_detail(self, seed: int) -> Details | None:
        """What does not depend on the method, from whichever run of the seed left details."""
        found = (self.detail(label, seed) for label in self.labels)
        return next((detail for detail in found if detail), None)


def extremes(rows: list[Row]) -> list[Row]:
    """The sorted rows that a chart can show: all of them, or the first and the last."""
    return rows if len(rows) <= MOST else rows[: MOST // 2] + rows[-MOST // 2 :]


def fewer(count: int, shown: int, what: str) -> str:
    return "" if shown >= count else f" Of {count:,} clients the {shown} {what} are shown."
