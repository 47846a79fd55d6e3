"""One thread for small steps, and none that spins while it waits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.data import federate, load_dataset
from fedekd.engines.job import Job, Training
from fedekd.engines.threads import WORTH_THREADS, fitting_threads, step_work


def job(name: str, batch_size: int, **models) -> Job:
    return Job(
        federate(load_dataset(name), clients=3), methods.get("fedavg"), 0, Training(1, 1, batch_size, 1e-3), **models
    )


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_work_of_a_step_is_counted_by_hand():
    table = job("heart", 32)
    inputs = table.federation.dataset.x.shape[1]
    assert step_work(table) == 32 * (inputs * 128 + 128 * 128 + 128 * 2)
    convolutions = 64 * (1 * 64 * 9) + 16 * (64 * 128 * 9) + 4 * (128 * 128 * 9)
    assert step_work(job("digits", 10)) == 10 * (convolutions + 128 * 256 + 256 * 10)


class Squares(nn.Module):
    """Weights, and none of the layers that are counted."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(50, outputs))

    def forward(self, x):
        return x.flatten(1).square().sum(1, keepdim=True) * self.scale.sum(0)


def test_other_weights_count_once():
    assert step_work(job("heart", 7, private=Squares, proxy=Squares)) == 7 * 100


def test_small_steps_take_one_thread_and_large_ones_all(two_threads):
    small, large = job("heart", 32), job("digits", 1024)
    assert step_work(small) < WORTH_THREADS < step_work(large)
    with fitting_threads(small):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with fitting_threads(large):
        assert torch.get_num_threads() == 2


def test_a_number_in_the_environment_holds(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with fitting_threads(job("heart", 32)):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_who_waits_leaves_its_core_unless_the_user_says_otherwise(given, found):
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import fedekd, os, sys; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    environment = rest | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
