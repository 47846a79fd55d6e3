"""Finished runs, for Python: rows per client, summary over seeds, a pandas frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError
from fedekd.runs.aggregate import SummaryRow, aggregate
from fedekd.runs.current import current
from fedekd.runs.records import Record
from fedekd.runs.store import read_records
from fedekd.runs.summary import as_html
from fedekd.runs.transfer import MethodTransfer, analyse
from fedekd.settings import ChosenBy
from fedekd.units import count

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class RunResults:
    """The records of a set of runs, one per dataset, alpha, seed and method."""

    records: list[Record]
    folder: Path | None = field(default=None, compare=False)
    """Where the records are, with the predictions on test rows if Δ is in a metric that needs them."""
    replaced: int = field(default=0, compare=False)
    """How many runs of the folder are not here, since they were made again with other data, models, code or device."""

    @property
    def left_out(self) -> str:
        """The same in words; nothing where all runs are here."""
        runs = count(self.replaced, "run")
        return f"left out: {runs} made again since, with other data, models, code or device" if self.replaced else ""

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One row per run and client: n_train, n_val, n_test, local, value, delta, and models and data of one's own."""
        shared = ("dataset", "alpha", "seed", "method", "label", "private", "proxy", "data")
        rows = [(dict[str, Any](record), client) for record in self.records for client in record["clients"]]
        return [{name: record[name] for name in shared if name in record} | dict(client) for record, client in rows]

    @property
    def summary(self) -> list[SummaryRow]:
        """One row per dataset, alpha and method: mean and std over seeds, 95 % interval of avg_delta."""
        return aggregate(self.records, self.folder)

    @property
    def transfer(self) -> list[MethodTransfer]:
        """Each method's Δ taken apart, with a verdict on every client: see ``fedekd.runs.transfer``."""
        return analyse(self.records, self.folder)

    def to_frame(self) -> pandas.DataFrame:
        """``clients`` as a pandas DataFrame, without the packed test rows.

        Each score has a column (``scores.auroc``), and each parameter and setting (``params.mu``, ``params.lr``).
        """
        import pandas

        params = [dict(record["params"]) for record in self.records for _ in record["clients"]]
        clients = [{name: value for name, value in row.items() if name != "rows"} for row in self.clients]
        return pandas.json_normalize([{**row, "params": own} for row, own in zip(clients, params, strict=True)])

    def __repr__(self) -> str:
        datasets, labels = ([*dict.fromkeys(record[key] for record in self.records)] for key in ("dataset", "label"))
        where = f" in {self.folder}" if self.folder else ""
        return f"<{count(len(self.records), 'run')}{where}: {', '.join(datasets)}; {', '.join(labels)}>"

    def _repr_html_(self) -> str:
        """The summary, as a notebook shows it."""
        return as_html(self.records, self.folder)


def load(folder: str | Path, chosen_by: ChosenBy | None = None) -> RunResults:
    """The results that an earlier run left in a folder.

    Runs that were made again, since data, models or code were changed, are not among them (``replaced``).
    ``chosen_by`` is what chooses the best alone, "metric" or "loss", if not what the run was given.
    """
    if not isinstance(folder, str | Path):
        raise FedekdError(f"load takes the folder of a run, got {folder!r}")
    records = read_records(Path(folder) / "results.jsonl", chosen_by)
    if not records:
        raise FedekdError(f"no results.jsonl in {folder}; run `fedekd run --out {folder}` first")
    kept = current(records)
    return RunResults(kept, Path(folder), replaced=len({r["key"] for r in records}) - len(kept))
