"""Batches: every sample once an epoch, the same for every method on a seed, keyed by the trained role."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedekd import methods
from fedekd.engines import client
from fedekd.engines.job import SERVER, Job, Training
from fedekd.engines.schedule import numbered, schedule
from fedekd.engines.serial import Serial
from fedekd.methods.base import Train
from tiny import quick

SIZES = {"n": 23, "epochs": 3, "batch_size": 5, "draws": 2}


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 70), st.integers(1, 4), st.integers(1, 80), st.integers(0, 2), st.integers(0, 9))
def test_every_epoch_is_a_permutation_and_every_batch_a_step(n, epochs, batch_size, draws, seed):
    plan = schedule(seed, 1, "private", 0, n=n, epochs=epochs, batch_size=batch_size, draws=draws)
    assert plan.order.shape == (epochs, n)
    assert plan.order.dtype == np.int64
    assert (np.sort(plan.order, -1) == np.arange(n)).all()
    assert plan.uniform.shape == (epochs, n, draws)
    assert plan.uniform.dtype == np.float32
    assert ((plan.uniform >= 0) & (plan.uniform < 1)).all()
    batches = [len(torch.from_numpy(order).split(batch_size)) for order in plan.order]
    assert plan.steps == sum(batches)
    assert plan.batch_size == batch_size


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(10, 5, 6), (11, 5, 9), (1, 5, 3), (5, 100, 3), (7, 1, 21)])
def test_steps_by_hand(n, batch_size, steps):
    assert schedule(0, 0, "private", 0, n=n, epochs=3, batch_size=batch_size, draws=0).steps == steps


def test_seed_client_role_and_round_each_give_other_batches():
    keys = list(itertools.product([0, 1], [0, 1], ["private", "proxy"], [0, 1]))
    plans = [schedule(*key, **SIZES) for key in keys]
    assert len({plan.order.tobytes() for plan in plans}) == len(keys)
    assert len({plan.uniform.tobytes() for plan in plans}) == len(keys)
    again = schedule(*keys[5], **SIZES)
    assert np.array_equal(again.order, plans[5].order)
    assert np.array_equal(again.uniform, plans[5].uniform)


def test_epochs_differ_and_a_longer_training_begins_alike():
    long, short = (schedule(0, 0, "private", 0, **{**SIZES, "epochs": e}) for e in (3, 2))
    assert len({order.tobytes() for order in long.order}) == 3
    assert np.array_equal(long.order[:2], short.order)


def test_the_order_does_not_depend_on_batch_size_or_draws():
    """Otherwise a method that draws would see other batches than Local, and its delta would not be paired."""
    one = schedule(0, 0, "private", 0, **SIZES)
    other = schedule(0, 0, "private", 0, **{**SIZES, "batch_size": 2, "draws": 0})
    assert np.array_equal(one.order, other.order)


@pytest.mark.parametrize("name", [n for n, m in methods.known().items() if m.roles and "classification" in m.tasks])
def test_the_key_is_the_role_that_trains(images, monkeypatch, name):
    """Whatever a method does before, its private model is trained on Local's batches."""
    asked = []

    def watched(seed, client, role, round, **sizes):
        asked.append((seed, client, role, round, sizes["split"], sizes["again"]))
        return schedule(seed, client, role, round, **sizes)

    monkeypatch.setattr(client, "schedule", watched)

    def linear(shape, outputs):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.Linear(4, outputs))

    method, federation = quick(name), replace(images, public=images.clients[0].val)
    engine = Serial(Job(federation, method, 4, Training(1, 1, 256, 1e-3), linear, linear))
    engine.round()
    trains = [(step, again) for step, again in numbered(method.steps(0)) if isinstance(step, Train)]
    own = [one for one in asked if one[1] != SERVER]
    assert own == [
        (4, client, method.root(step.roles[0]), 0, step.split, again)
        for step, again in trains
        for client in range(len(images.clients))
    ]
    assert (4, 0, "private", 0, "train", 0) in own
