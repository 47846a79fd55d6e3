"""``fedekd.run`` for Python, and what it shares with the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedekd.runs.results import RunResults
from fedekd.settings import Settings, make_settings

if TYPE_CHECKING:
    from fedekd.dataset import Dataset


def run(
    dataset: str | Dataset = "digits", *, progress: bool = True, log_to: str = "none", workers: int = 1, **given: Any
) -> RunResults:
    """Train the methods on every seed and compare each client with training alone.

    Takes every setting of ``fedekd run`` by its name (``methods``, ``alpha``, ``seeds``, ``rounds``, ...). Also takes
    objects where the command line takes names: a ``Dataset``, ``Method`` instances among ``methods``, and functions as
    ``private`` and ``proxy``. ``progress`` says whether to show it, and ``log_to`` names trackers, as ``--log-to``
    does. With ``workers`` above 1, methods and seeds train in parallel in that many processes; a script then needs its
    ``if __name__ == "__main__":``.
    """
    from fedekd.dataset import Dataset

    own = dataset if isinstance(dataset, Dataset) else None
    settings = make_settings({"dataset": own.name if own else dataset, **given})
    return watched_run(settings, progress, log_to, own, workers)


def watched_run(
    settings: Settings, progress: bool, log_to: str, dataset: Dataset | None = None, workers: int | None = None
) -> RunResults:
    """A run with its display, ``progress.json`` and trackers, all of which start before torch is loaded."""
    from fedekd import trackers
    from fedekd.report.progress import watch
    from fedekd.runs.progress_file import ProgressFile

    also = [ProgressFile(settings.out), *trackers.choose(log_to, settings, not progress)]
    with watch(progress, also, f"loading {settings.dataset}") as observer:
        from fedekd.runs.runner import run

        return run(settings, observer, dataset, workers)
