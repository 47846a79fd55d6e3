"""Trackers' own stores, read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb_file

from fedekd.trackers import NEEDS, missing

Points = dict[str, list[tuple[int, Any]]]


def need(name: str) -> None:
    if missing(NEEDS[name]):
        pytest.skip(f"pip install 'fedekd[{name}]' for this test")


@pytest.fixture(params=NEEDS)
def tracker(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return request.param


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's account or server is written to."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As MLflow makes it: which takes it seconds, and is the same every time."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def out(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "out"
    (folder / "mlruns").mkdir(parents=True)
    if "mlflow" in request.node.name:
        shutil.copy(request.getfixturevalue("empty_database"), folder / "mlruns" / "mlflow.db")
    return folder


@pytest.fixture
def read(tracker: str) -> Callable[[Path], list[tuple[str, Points]]]:
    """The runs that a tracker holds of a results folder: by tag, the points with their steps; histograms as counts."""

    def runs(out: Path) -> list[tuple[str, Points]]:
        return list(READERS[tracker](out))

    return runs


def from_tensorboard(out: Path) -> Iterator[tuple[str, Points]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for folder in (out / "tensorboard").glob("*/*"):
        events = EventAccumulator(str(folder), {"scalars": 0, "histograms": 0}).Reload()
        points: Points = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        for tag in events.Tags()["histograms"]:
            points[tag] = [(e.step, list(e.histogram_value.bucket)) for e in events.Histograms(tag)]
        yield folder.name.replace("-seed", " seed "), points


def from_mlflow(out: Path) -> Iterator[tuple[str, Points]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{out / 'mlruns' / 'mlflow.db'}")
    for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
        points: Points = {
            tag: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
            for tag in run.data.metrics
        }
        for file in client.list_artifacts(run.info.run_id, "trust"):
            content = json.loads(Path(client.download_artifacts(run.info.run_id, file.path)).read_text())
            for tag, weights in content.items():
                points.setdefault(tag, []).append((int(file.path[-9:-5]), weights["histogram"]))
        yield run.info.run_name, points


def from_wandb(out: Path) -> Iterator[tuple[str, Points]]:
    runs: dict[str, tuple[str, Points]] = {}
    for file in sorted((out / "wandb").glob("offline-run-*/*.wandb")):
        name, points = wandb_file.read(file)
        _, whole = runs.setdefault(file.stem, (name, {}))  # the files of one id are one run
        for tag, more in points.items():
            whole.setdefault(tag, []).extend(more)
    yield from runs.values()


READERS = {"tensorboard": from_tensorboard, "mlflow": from_mlflow, "wandb": from_wandb}
