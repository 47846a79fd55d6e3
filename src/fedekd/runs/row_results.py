"""What records keep of their test rows: whether each was answered rightly, and what two runs' rows say of Δ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedekd import scores, verdicts
from fedekd.runs import answers, packing
from fedekd.runs.records import Record
from fedekd.units import describe
from fedekd.verdicts import Comparison, Measure

BY_CLASS = ("balanced_accuracy", "macro_f1", "auroc")  # in which classes count alike, however few rows they have
MEASURES = {"accuracy": verdicts.share, "rmse": verdicts.root_mean_square}  # of what a record holds of its rows


def rows_of(record: Record, position: int, folder: Path | None = None, chosen: bool = False) -> np.ndarray | None:
    """What a client's test rows came to at the last or the chosen round; None where that was not kept.

    It is in the record, or for a metric that needs more in a file of the folder where the record lies.
    """
    client = record["clients"][position]
    if (packed := client.get("rows")) is not None:
        text = packed.get("chosen", packed["last"]) if chosen else packed["last"]
        return packing.unpack(text, client["n_test"], record["metric"])
    if folder is None or record["metric"] in MEASURES:
        return None
    return answers.read(folder, client.get("run", record["key"]), position, chosen)


def groups_of(record: Record, position: int) -> np.ndarray | None:
    """[test rows]: numbers of the groups that they belong to, such as patients; None where each stands for itself."""
    client = record["clients"][position]
    return packing.unpack_codes(client["groups"], client["n_test"]) if "groups" in client else None


def compared(
    joined: Sequence[np.ndarray | None],
    alone: Sequence[np.ndarray | None],
    metric: str,
    groups: np.ndarray | None = None,
    clients: np.ndarray | None = None,
    folds: np.ndarray | None = None,
) -> Comparison | None:
    """Rows by seed, as ``rows_of`` gives them; ``clients`` says whose they are where they are of several, ``folds``
    which training tested each where there were several."""
    if folds is not None:
        clients = folds if clients is None else clients + folds * (clients.max(initial=0) + 1)
    left, other = ([rows for rows in some if rows is not None] for some in (joined, alone))
    if not left or len(left) < len(joined) or len(other) < len(alone):
        return None
    about, measure = describe(metric), MEASURES.get(metric) or scores.SCORES[metric].measure
    if clients is not None and measure is not verdicts.share:
        left, other = ([np.column_stack([rows, clients]) for rows in some] for some in (left, other))
        measure = _over_clients(measure, flat=metric in MEASURES)
    margin = verdicts.MARGIN if about.share or about.higher_is_better else None
    minority = _minority(left[0][:, 0]) if metric in BY_CLASS else None
    return Comparison(
        np.stack(left),
        np.stack(other),
        measure,
        about.higher_is_better,
        groups=groups,
        strata=clients,
        margin=margin,
        counted=about.share,
        folds=folds,
        minority=minority,
    )


def _minority(target: np.ndarray) -> np.ndarray:
    values, counts = np.unique(target, return_counts=True)
    return target != values[counts.argmax()]


def _over_clients(measure: Measure, flat: bool) -> Measure:
    """The mean of each client's own, by its number of rows; ``flat``: of rows that are single numbers.

    The last column says whose a row is, the same in all draws. A metric that ranks rows, such as AUROC, would otherwise
    compare the answers of different clients' models, and count for them how much the clients differ.
    """

    def over(rows: np.ndarray) -> np.ndarray:
        values, weights = [], []
        for client in np.unique(rows[0, :, -1]):
            own = rows[:, rows[0, :, -1] == client, :-1]
            values.append(measure(own[..., 0] if flat else own))
            weights.append(np.where(np.isnan(values[-1]), 0.0, own.shape[1]))
        total, sums = np.sum(weights, 0), np.sum(np.nan_to_num(values) * np.array(weights), 0)
        return np.divide(sums, total, out=np.full(total.shape, np.nan), where=total > 0)

    return over


def mean_interval(joined: Record, alone: Record, folder: Path | None = None) -> tuple[float, float] | None:
    """The interval of two runs' mean difference over clients, after the last rounds; None if rows are not known."""
    pairs = [
        compared([rows_of(joined, k, folder)], [rows_of(alone, k, folder)], joined["metric"], groups_of(joined, k))
        for k in range(len(joined["clients"]))
    ]
    return verdicts.mean_interval(pairs)
