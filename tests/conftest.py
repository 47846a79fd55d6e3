"""Small federations that train in a second, shared by the tests."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; the models are tiny, and processes have it from here

import numpy as np
import pytest
import torch

from fedekd.data import Dataset, Federation, federate, load_dataset
from order import slow_first

pytest_plugins = ["made_records"]
torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items[:] = slow_first(items)


def take(dataset: Dataset, count: int) -> Dataset:
    from dataclasses import replace

    rows = np.random.default_rng(0).permutation(len(dataset.y))[:count]
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows])


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What fedekd keeps beside its data does not land in the user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """A site saves its state in several files and folders at each visit, and a sync of each takes milliseconds."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return take(load_dataset("digits"), 260)


@pytest.fixture(scope="session")
def diabetes() -> Dataset:
    return take(load_dataset("diabetes"), 200)


@pytest.fixture(scope="session")
def images(digits: Dataset) -> Federation:
    """Three clients of unequal size with handwritten digits."""
    return federate(digits, clients=3, alpha=0.5, seed=1)


@pytest.fixture(scope="session")
def tables(diabetes: Dataset) -> Federation:
    """Three clients of unequal size with patients."""
    return federate(diabetes, clients=3, alpha=0.5, seed=1)
