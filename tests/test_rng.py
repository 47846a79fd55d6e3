"""Randomness by (seed, key): the same everywhere, independent between keys, and never from a global state."""

from __future__ import annotations

import itertools
import random
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedekd import rng

KEYS = st.lists(st.text("abc", min_size=1, max_size=3) | st.integers(0, 40), max_size=4).map(tuple)


def test_the_scheme_is_pinned():
    """Finished runs and checkpoints rest on these numbers: whoever changes them makes all of those stale."""
    assert rng.integer(0, "weights", "private") == 240500941388897266
    assert rng.integer(7, "batches", "proxy", 3, 1, 0) == 3769811382590885266
    assert rng.stream(0, "batches", "private", 0, 0, 0).permutation(8).tolist() == [4, 6, 7, 1, 0, 2, 5, 3]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 2**31), KEYS, KEYS)
def test_a_stream_belongs_to_its_seed_and_key(seed, other, key, another):
    assert rng.integer(seed, *key) == rng.integer(seed, *key)
    if (seed, key) != (other, another):
        assert rng.integer(seed, *key) != rng.integer(other, *another)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([0, 2**32 - 1, 2**32, 2**70]) | st.integers(0, 2**33), KEYS)
def test_the_streams_are_those_of_numpys_spawn_keys(seed, key):
    words = tuple(zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key)
    wanted = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=words))
    assert rng.stream(seed, *key).bit_generator.state == wanted.state


@pytest.mark.parametrize("key", [("",), ("weights", ""), (0, "", 1)])
def test_an_empty_word_would_have_the_stream_of_zero_and_is_refused(key):
    with pytest.raises(ValueError, match="empty word"):
        rng.stream(0, *key)


def test_words_numbers_order_and_length_of_a_key_matter():
    keys = [
        (),
        (0,),
        (0, 0),
        (0, 1),
        (1, 0),
        ("a",),
        ("b",),
        ("a", 0),
        (0, "a"),
        ("a", "b"),
        ("b", "a"),
        ("ab",),
        ("1",),
    ]
    assert len({rng.integer(5, *key) for key in keys}) == len(keys)


def test_streams_are_not_correlated():
    """Neighbouring seeds, clients and rounds: each pair as unlike as independent draws are."""
    keys = itertools.product(range(4), ["batches", "uniform"], range(4), range(3))
    draws = np.stack([rng.stream(seed, word, client, round).random(400) for seed, word, client, round in keys])
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 0.25  # 5 deviations of 1/sqrt(400)
    assert abs(correlation.mean()) < 0.005
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.std() - 12**-0.5) < 0.01


def test_one_stream_goes_on_and_a_second_begins_anew():
    first = rng.stream(1, "x")
    a, b = first.random(), first.random()
    assert a != b
    assert rng.stream(1, "x").random() == a


def test_integers_fit_other_libraries():
    values = [rng.integer(seed, "weights") for seed in range(300)]
    assert all(type(v) is int and 0 <= v < 2**63 - 1 for v in values)
    assert max(values) > 2**62  # all bits are used
    torch.Generator().manual_seed(max(values))


def test_global_states_neither_matter_nor_move():
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    value = rng.integer(3, "weights", 2)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()
    np.random.seed(2)  # noqa: NPY002
    assert rng.integer(3, "weights", 2) == value
