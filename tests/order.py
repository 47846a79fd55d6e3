"""Which files begin first where several processes share the tests, each taking one file after another.

A slow file that begins last leaves the other processes idle. Files that wait for processes of their own stand among
those that compute, so that two of them seldom wait side by side. All others follow in their usual order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

HERE = Path(__file__).parent
FIRST = (
    "flower/test_supervise.py",
    "test_conformance.py",
    "test_docs.py",
    "flower/test_federation.py",
    "flower/test_equality.py",
    "flower/test_dp_federation.py",
    "flower/test_budget.py",
    "report/test_papers_study.py",
    "flower/test_demo.py",
    "flower/test_conformance_at_sites.py",
    "methods/test_twins.py",
    "flower/test_renewal.py",
    "flower/test_secure_aggregation.py",
    "test_verdicts.py",
    "flower/test_secure_federation.py",
    "export/test_answers.py",
    "test_examples.py",
    "flower/test_deployment_page.py",
    "flower/test_rounds.py",
    "runs/test_choose_rounds.py",
    "flower/test_run_site.py",
    "runs/test_execution.py",
    "engines/test_stacked.py",
    "studies/test_study_processes.py",
    "test_mutants.py",
    "test_watch.py",
)


class HasPath(Protocol):
    @property
    def path(self) -> Path: ...


Item = TypeVar("Item", bound=HasPath)


def slow_first(items: list[Item]) -> list[Item]:
    place = {HERE / name: k for k, name in enumerate(FIRST)}
    return sorted(items, key=lambda item: place.get(item.path, len(place)))
