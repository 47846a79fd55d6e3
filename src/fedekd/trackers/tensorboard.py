"""TensorBoard: a folder of event files per method and seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fedekd.runs.observers import Trust
from fedekd.trackers.experiment import Experiment, tag

COMPLETE = "complete"  # an empty file beside the events
OUTCOME = ("final/avg_delta", "final/worst_delta", "final/tail_delta", "final/mean")


def connect(experiment: Experiment, folder: Path) -> TensorBoard:
    return TensorBoard(folder / "tensorboard", experiment)


class TensorBoard:
    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder = folder / experiment.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.where = f"tensorboard --logdir {folder}"

    def has(self, label: str, seed: int) -> bool:
        return (self._home(label, seed) / COMPLETE).exists()

    def open(self, label: str, seed: int, round: int) -> Events:
        return Events(self._home(label, seed), round)

    def _home(self, label: str, seed: int) -> Path:
        return self.folder / f"{tag(label)}-seed{seed}"


class Events:
    def __init__(self, folder: Path, round: int) -> None:
        self.complete = folder / COMPLETE
        self.complete.unlink(missing_ok=True)
        # TensorBoard leaves out what an earlier process wrote of this step and later ones
        self.writer = SummaryWriter(str(folder), purge_step=round)

    def log(self, scalars: dict[str, float], histograms: dict[str, Trust], round: int) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, round)
        for name, weights in histograms.items():
            self._histogram(name, weights, round)
        self.writer.flush()

    def _histogram(self, name: str, weights: Trust, round: int) -> None:
        """From the counts alone; the least and the greatest weight are known to the width of a bin."""
        counts = weights["histogram"]
        total, bins = sum(counts), len(counts)
        if not total:
            return
        filled = [place for place, number in enumerate(counts) if number]
        self.writer.add_histogram_raw(
            name,
            min=filled[0] / bins,
            max=(filled[-1] + 1) / bins,
            num=total,
            sum=total * weights["mean"],
            sum_squares=total * (weights["mean"] ** 2 + weights["std"] ** 2),
            bucket_limits=[(place + 1) / bins for place in range(bins)],
            bucket_counts=counts,
            global_step=round,
        )

    def end(self, params: dict[str, Any], scalars: dict[str, float], round: int) -> None:
        self.log(scalars, {}, round)
        simple = {k: v if isinstance(v, (bool, int, float, str)) else json.dumps(v) for k, v in params.items()}
        for summary in hparams(simple, {name: scalars[name] for name in OUTCOME if name in scalars}):
            self.writer._get_file_writer().add_summary(summary)
        self.writer.close()
        self.complete.touch()

    def abandon(self) -> None:
        self.writer.close()
