"""Studies: grids of runs that can be stopped at any moment, resumed, and spread over cores or a cluster."""

from __future__ import annotations

from fedekd.runs.execution import Failure
from fedekd.studies.dry_run import DryRun, describe
from fedekd.studies.grid import Study, load_study, presets
from fedekd.studies.runner import StudyOutcome, run_study
from fedekd.studies.tally import Tally

__all__ = ["DryRun", "Failure", "Study", "StudyOutcome", "Tally", "describe", "load_study", "presets", "run_study"]
