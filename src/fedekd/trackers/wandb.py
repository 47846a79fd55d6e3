"""Weights & Biases: a run per method and seed; offline unless the user has logged in."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from requests.utils import get_netrc_auth

from fedekd.files import write_whole
from fedekd.runs.observers import Trust
from fedekd.trackers.experiment import Experiment


def connect(experiment: Experiment, folder: Path) -> WandB:
    return WandB(experiment, folder.resolve())


def logged_in() -> bool:
    home = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY") or get_netrc_auth(home))


class WandB:
    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        self.mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
        sync = f"; wandb sync {folder / 'wandb' / 'offline-run-*'} uploads it" if self.mode == "offline" else ""
        self.where = f"{self.mode}, in {folder / 'wandb'}{sync}"

    def has(self, label: str, seed: int) -> bool:
        return self._ledger(label, seed).entry["complete"]

    def open(self, label: str, seed: int, round: int) -> Sent:
        ledger = self._ledger(label, seed)
        if round == 1:
            ledger.write(attempt=ledger.entry["attempt"] + 1, last=0, complete=False)
        run = wandb.init(
            project="fedekd",
            group=self.experiment.name,
            name=f"{label} seed {seed}",
            id=f"{ledger.run}-{ledger.entry['attempt']}",
            resume="allow" if self.mode == "online" else None,
            mode=self.mode,  # type: ignore[arg-type,unused-ignore]
            dir=str(self.folder),
            config={**self.experiment.params, "method": label, "seed": seed},
            reinit="create_new",  # a stack trains several at once
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, finish_timeout=60),
        )
        return Sent(run, ledger)

    def _ledger(self, label: str, seed: int) -> Ledger:
        name = f"{self.folder}\n{self.experiment.name}\n{label}\n{seed}"
        return Ledger(self.folder / "wandb" / "fedekd-logged.json", hashlib.sha256(name.encode()).hexdigest()[:12])


class Ledger:
    """Which rounds of a run were logged, since an offline run cannot be asked. What starts anew is another attempt."""

    def __init__(self, file: Path, run: str) -> None:
        self.file, self.run = file, run
        self.entry: dict[str, Any] = {"attempt": 0, "last": 0, "complete": False, **self._all().get(run, {})}

    def _all(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def write(self, **changes: Any) -> None:
        self.entry |= changes
        write_whole(self.file, json.dumps({**self._all(), self.run: self.entry}).encode())


class Sent:
    def __init__(self, run: Any, ledger: Ledger) -> None:
        self.run, self.ledger = run, ledger

    def log(self, scalars: dict[str, float], histograms: dict[str, Trust], round: int) -> None:
        if round <= self.ledger.entry["last"]:
            return
        self.ledger.write(last=round)
        pictures = {name: wandb.Histogram(np_histogram=_edges(w["histogram"])) for name, w in histograms.items()}
        self.run.log({**scalars, **pictures}, step=round)

    def end(self, params: dict[str, Any], scalars: dict[str, float], round: int) -> None:
        self.run.config.update(params, allow_val_change=True)
        self.run.summary.update(scalars)
        self.run.finish()
        self.ledger.write(complete=True)

    def abandon(self) -> None:
        self.run.finish(exit_code=1)


def _edges(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(counts), np.linspace(0, 1, len(counts) + 1)
