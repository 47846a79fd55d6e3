"""fedekd study: run a grid of datasets, alphas, seeds and methods."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fedekd.commands.parser import add_settings, command
from fedekd.errors import FedekdError

STUDY = ("data", "out", "seeds", "rounds", "epochs", "device", "precision", "engine", "chosen_by")


def add(commands: Any) -> None:
    study = command(commands, "study", run_study, "run a grid of datasets, alphas, seeds and methods")
    study.add_argument("study", metavar="NAME", help="paper, field, joining, or a TOML file")
    add_settings(study, STUDY, "as in the study")
    study.add_argument(
        "--only", default="", metavar="FILTER", help="run a part of the grid, such as dataset=cifar10,method=fedekd"
    )
    study.add_argument("--dry-run", action="store_true", help="only count runs, samples and bytes")
    study.add_argument("--workers", type=int, metavar="N", help="processes on a CPU (default: one for each core)")
    study.add_argument("--ray", metavar="ADDRESS", help="spread the runs over a Ray cluster (or: local)")


def run_study(given: argparse.Namespace) -> None:
    overrides = {name: getattr(given, name) for name in STUDY}
    print(f"loading study {given.study}", file=sys.stderr, flush=True)  # torch and the data take their time
    from fedekd import studies

    study = studies.load_study(given.study, overrides, given.only)
    if given.dry_run:
        print(studies.describe(study).text())
        return
    try:
        outcome = studies.run_study(study, workers=given.workers, ray=given.ray)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues where it stopped") from None
    print(outcome.text())
    if outcome.records:
        print(f"tables: fedekd table {outcome.folder}; a page: fedekd report {outcome.folder}")
    if outcome.failed:
        raise FedekdError(f"{len(outcome.failed)} runs failed, see failures.jsonl; the same command tries them again")
