"""MLflow: a run per method and seed, on the server of MLFLOW_TRACKING_URI or in a database in the results folder."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Any

# A server that is away must not hold up the training for the minutes that MLflow would wait.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from mlflow import MlflowException
from mlflow.entities import Metric, Param, RunStatus
from mlflow.tracking import MlflowClient

from fedekd.errors import FedekdError
from fedekd.runs.observers import Trust
from fedekd.trackers.experiment import Experiment
from fedekd.trackers.tracker import in_a_line

IDENTITY = "fedekd.run"


def connect(experiment: Experiment, folder: Path) -> MLflow:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MLflow(experiment, folder.resolve())


class MLflow:
    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        self.where = f"logging to {uri}"
        if not uri:
            home = folder / "mlruns"
            home.mkdir(parents=True, exist_ok=True)
            uri, artifacts = f"sqlite:///{home / 'mlflow.db'}", (home / "artifacts").as_uri()
            self.where = f"mlflow ui --backend-store-uri {uri}"
        self.client = MlflowClient(uri)
        try:
            self.id = self._id(f"fedekd {experiment.name}", artifacts)
        except MlflowException as error:
            remedy = "start it, or unset MLFLOW_TRACKING_URI" if artifacts is None else "remove it, or mend it"
            raise FedekdError(f"--log-to mlflow: cannot use {uri}: {in_a_line(error)}; {remedy}") from None

    def _id(self, name: str, artifacts: str | None) -> str:
        known = self.client.get_experiment_by_name(name)
        return known.experiment_id if known else self.client.create_experiment(name, artifacts)

    def has(self, label: str, seed: int) -> bool:
        return bool(self._runs(label, seed, "="))

    def open(self, label: str, seed: int, round: int) -> Logged:
        """A run that was interrupted in this results folder goes on; one that starts anew takes its place."""
        for run in self._runs(label, seed, "!="):
            if round > 1:
                self.client.update_run(run.info.run_id, status=RunStatus.to_string(RunStatus.RUNNING))
                return Logged(self.client, run.info.run_id, self._steps(run))
            self.client.delete_run(run.info.run_id)
        marks = {IDENTITY: self._identity(label, seed), "method": label, "seed": str(seed), "folder": str(self.folder)}
        run = self.client.create_run(self.id, run_name=f"{label} seed {seed}", tags=marks)
        return Logged(self.client, run.info.run_id, set())

    def _runs(self, label: str, seed: int, compared: str) -> list[Any]:
        same = f"tags.`{IDENTITY}` = '{self._identity(label, seed)}' and attributes.status {compared} 'FINISHED'"
        return list(self.client.search_runs([self.id], same, max_results=1))

    def _identity(self, label: str, seed: int) -> str:
        return hashlib.sha256(f"{self.folder}\n{self.experiment.name}\n{label}\n{seed}".encode()).hexdigest()[:16]

    def _steps(self, run: Any) -> set[tuple[str, int]]:
        history = self.client.get_metric_history
        return {(name, point.step) for name in run.data.metrics for point in history(run.info.run_id, name)}


class Logged:
    def __init__(self, client: MlflowClient, run: str, known: set[tuple[str, int]]) -> None:
        self.client, self.run, self.known = client, run, known

    def log(self, scalars: dict[str, float], histograms: dict[str, Trust], round: int) -> None:
        """MLflow keeps what was logged twice twice, so what it knows of an interrupted run is left out."""
        now = int(1000 * time.time())
        fresh = [Metric(name, x, now, round) for name, x in scalars.items() if (name, round) not in self.known]
        for start in range(0, len(fresh), 1000):  # as many as MLflow takes at once
            self.client.log_batch(self.run, metrics=fresh[start : start + 1000])
        if histograms:  # which MLflow has no charts for
            self.client.log_dict(self.run, histograms, f"trust/round-{round:04d}.json")

    def end(self, params: dict[str, Any], scalars: dict[str, float], round: int) -> None:
        self.log(scalars, {}, round)
        self.client.log_batch(self.run, params=[Param(name, str(value)) for name, value in params.items()])
        self.client.set_terminated(self.run)

    def abandon(self) -> None:
        self.client.set_terminated(self.run, status=RunStatus.to_string(RunStatus.KILLED))
