"""Tables of what ``analyse`` finds: Δ taken apart, how many clients are in which state, and Δ by subgroup."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fedekd.report.study_records import StudyColumn, StudyRecords
from fedekd.report.table_formats import Table, TableCell, TableRow, ranked
from fedekd.runs.findings import not_known
from fedekd.runs.subgroups import MethodSubgroups, SubgroupDelta
from fedekd.runs.transfer import PARTS, MethodTransfer
from fedekd.runs.verdict_text import STATES, assumed, best_of, menu, seeds
from fedekd.units import Unit
from fedekd.verdicts import HARMED, HELPED

SHORT = {"classification": "cls", "regression": "reg"}
Over = Literal["mean", "worst", "tail"]  # clients
Analysed = dict[tuple[str, StudyColumn], MethodTransfer]


@dataclass(frozen=True, eq=False)
class TransferTables:
    """The tables of one task, with the methods and columns of its other tables."""

    study: StudyRecords
    task: str
    methods: Sequence[str]
    columns: Sequence[StudyColumn]

    def tables(self) -> list[Table]:
        found = (self.parts(), self.states(), self.by_sign(), self.subgroups())
        return [table for table in found if table.rows]

    @cached_property
    def unit(self) -> Unit:
        return self.study.unit(self.task)

    @cached_property
    def shown(self) -> list[str]:
        """Methods, each followed by itself with the configuration that each client chooses, where that is asked for."""
        chosen = [one for one in self.study.best_of if any((one.label, c) in self.study.transfer for c in self.columns)]
        each = [[method, *(one.label for one in chosen if one.method == method)] for method in self.methods]
        return list(dict.fromkeys(label for labels in each for label in labels))

    def parts(self) -> Table:
        """Δ taken apart; empty where only Δ is known, which has other tables."""
        told = self.study.transfer
        if not any(self._known(one, part) for one in told.values() for part in PARTS if part != "delta"):
            return self._table("transfer", "", (), (), (), ())
        twins = {one.label for one in told.values() if "recipe" in one.summary}
        names = {part: "Δ" if part == "delta" else part for part in PARTS}
        over: dict[Over, str] = {"mean": "Avg", "worst": "Worst", "tail": self.unit.tail}
        rows = [
            TableRow((method, f"{name}, {of}"), method, tuple(self._part(method, c, part, key) for c in self.columns))
            for method in self.shown
            for part, name in names.items()
            for key, of in over.items()
        ]
        rows = [row for row in rows if row.label in twins or any(cell.mean is not None for cell in row.cells)]
        notes = (
            "Δ: the method minus Local; recipe: the method's isolated twin minus Local; federation: the method minus "
            "its twin; gain: the method minus the best alone, both at the round chosen on validation rows, or the last "
            "round where a record has no validation results",
            "Avg: mean over clients, with its 95 % interval paired by seed (bold: on the better side of zero, "
            "underlined: on the worse); Worst: the client that loses most, mean over seeds; "
            f"{self.unit.tail}: the {self.unit.tail[1:]}th percentile of clients, likewise",
            *self._choices(),
            *self._not_known(twins),
            *self.study.notes([m for m in self.methods if any(row.label == m for row in rows)], self.columns),
        )
        better = "positive" if self.unit.higher_is_better else "negative"
        title = f"Δ taken apart, {self.task}: recipe, federation and gain over the best alone ({better} is better)"
        return self._table("transfer", title, ("method", "part"), self.columns, tuple(rows), notes)

    def _choices(self) -> list[str]:
        """Notes on the choices alone and on the configurations, if they are not the usual ones."""
        if not self.study.best_of and self.study.chosen_by == "metric":
            return []
        told = [one for (_, column), one in self.study.transfer.items() if column in self.columns]
        return [*dict.fromkeys(map(menu, told)), *self._best_of()]

    def _best_of(self) -> list[str]:
        return list(dict.fromkeys(best_of(one) for one in self.study.best_of if one.label in self.shown))

    def _not_known(self, labels: Collection[str]) -> list[str]:
        datasets = {dataset for dataset, _ in self.columns}
        return not_known([one for one in self.study.findings if one.dataset in datasets and one.label in labels])

    @staticmethod
    def _known(one: MethodTransfer, part: str) -> bool:
        """Gain over plain Local is Δ again, unless it is at the rounds that validation rows chose."""
        return part in one.summary and (part != "gain" or len(one.menu) > 1 or bool(one.states))

    def _part(self, method: str, column: StudyColumn, part: str, key: Over) -> TableCell:
        one = self.study.transfer.get((method, column))
        if one is None or not self._known(one, part):
            return TableCell()
        interval = one.summary[part]["interval"] if key == "mean" else None
        cell = replace(self._cell(one, column), mean=one.summary[part][key], interval=interval)
        return marked_by_interval(cell, self.unit)

    def states(self) -> Table:
        """How many clients, or client-runs where every seed splits anew, are in each state."""
        told = {place: one for place, one in self.study.transfer.items() if one.states and place[1] in self.columns}
        columns = self._with(told)
        rows = []
        for method in self.shown:
            own = [told.get((method, column)) for column in columns]
            for state, words in STATES.items() if any(own) else ():
                cells = [
                    replace(self._cell(one, c), share=(one.states[state], sum(one.states.values())))
                    if one
                    else TableCell()
                    for one, c in zip(own, columns, strict=True)
                ]
                rows.append(TableRow((method, words), method, tuple(cells)))
        all_, family = list(told.values()), "all methods and clients of one column"
        taken = dict.fromkeys(assumed(family, self.unit, one) for one in all_)
        notes = (*dict.fromkeys(map(menu, all_)), *self._best_of(), *taken, seeds(all_)) if all_ else ()
        title = f"Clients in each state against the best alone, {self.task}: of all clients, or client-runs"
        return self._table("states", title, ("method", "state"), columns, tuple(rows), notes)

    def subgroups(self) -> Table:
        """Δ against Local by subgroup, on the test rows of all clients; empty if the records name no subgroups."""
        cells: dict[tuple[str, str], dict[StudyColumn, TableCell]] = {}
        worst = []
        for method in sorted((one for one in self.study.subgroups if one.label in self.methods), key=self._order):
            place = (method.dataset, method.alpha)
            if place in self.columns:
                worst.append(f"{method.label}, {' '.join(self.study.heads([place])[0])}: {method.told}")
                for one in method.found:
                    row = (method.label, f"{method.column}={one.name}")
                    cells.setdefault(row, {})[place] = _subgroup(one)
        columns = [column for column in self.columns if any(column in some for some in cells.values())]
        rows = [
            TableRow(heads, heads[0], tuple(some.get(column, TableCell()) for column in columns))
            for heads, some in cells.items()
        ]
        notes = (
            "mean over clients by their test rows, with its 95 % interval; bold: clearly helped, underlined: clearly "
            "harmed, at 5 % over all methods and subgroups of one column (Holm's method)",
            *worst,
        )
        title = f"Δ of {self.unit.name} against Local by subgroup, {self.task}"
        return self._table("subgroups", title, ("method", "subgroup"), columns, tuple(rows), notes)

    def _order(self, one: MethodSubgroups) -> int:
        return self.methods.index(one.label)

    def by_sign(self) -> Table:
        """What is left to count where records do not hold the test rows."""
        told = {place: one for place, one in self.study.transfer.items() if not one.states}
        rows = []
        for method in self.shown:
            own = [told.get((method, column)) for column in self.columns]
            cells = [
                replace(self._cell(one, c), share=(one.by_sign, one.client_runs)) if one else TableCell()
                for one, c in zip(own, self.columns, strict=True)
            ]
            rows += [TableRow((method,), method, tuple(cells))] if any(own) else []
        marked = ranked(rows, lambda cell: -cell.share[0] / cell.share[1] if cell.share else None)
        title = f"Clients harmed by sign alone, {self.task}: client-runs that ended worse than alone, of all"
        notes = (
            "these records do not hold the test rows that a verdict needs: a difference counts however small it is",
            "bold: fewest of the column, underlined: second",
            *self._best_of(),
            *self.study.notes([row.label for row in rows if row.label in self.methods], self.columns),
        )
        return self._table("harmed", title, ("method",), self.columns, marked, notes)

    def _with(self, told: Analysed) -> list[StudyColumn]:
        return [column for column in self.columns if any(at == column for _, at in told)]

    def _cell(self, one: MethodTransfer, column: StudyColumn) -> TableCell:
        return TableCell(seeds=len(one.seeds), few=self.study.few(len(one.seeds), column))

    def _table(
        self,
        name: str,
        title: str,
        heads: tuple[str, ...],
        columns: Sequence[StudyColumn],
        rows: tuple[TableRow, ...],
        notes: Sequence[str],
    ) -> Table:
        name, percent = f"{name}_{SHORT[self.task]}", self.unit.percent
        return Table(name, title, heads, self.study.heads(columns), rows, tuple(notes), percent)


def _subgroup(one: SubgroupDelta) -> TableCell:
    if not math.isfinite(one.delta):
        return TableCell()
    interval = (one.low, one.high) if math.isfinite(one.low) else None
    return TableCell(one.delta, interval=interval, mark={HELPED: "best", HARMED: "second"}.get(one.state or "", ""))


def marked_by_interval(cell: TableCell, unit: Unit) -> TableCell:
    """Marked best where the whole interval lies on the better side of zero, second where on the worse."""
    return replace(cell, mark={1: "best", -1: "second", 0: ""}[unit.direction(cell.interval)])
