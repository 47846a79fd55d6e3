from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedekd.data import partition
from fedekd.errors import FedekdError

FACTS = json.loads((Path(__file__).parent / "partition_facts.json").read_text())


def counts(dataset: str, alpha: float, seed: int) -> list[list[int]]:
    """How many of each class every client holds depends on the class sizes alone, not on the rows' order."""
    sizes = FACTS["class_counts"][dataset]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    parts = partition.dirichlet(labels, 6, alpha, np.random.default_rng(seed))
    return [np.bincount(labels[part], minlength=len(sizes)).tolist() for part in parts]


def test_every_published_partition() -> None:
    wrong = []
    for key, digest in FACTS["digest"].items():
        dataset, alpha, seed = key.split("|")
        found = json.dumps(counts(dataset, float(alpha), int(seed)), separators=(",", ":"))
        if hashlib.sha256(found.encode()).hexdigest()[:12] != digest:
            wrong.append(key)
    assert len(FACTS["digest"]) == 120
    assert wrong == []


@pytest.mark.parametrize("key", FACTS["full"])
def test_published_partitions_in_full(key: str) -> None:
    """Among them OCTMNIST|0.1|1, whose first draw leaves a client poor and is drawn again."""
    dataset, alpha, seed = key.split("|")
    assert counts(dataset, float(alpha), int(seed)) == FACTS["full"][key]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(60, 400),
    classes=st.integers(1, 7),
    clients=st.integers(2, 6),
    alpha=st.sampled_from([0.3, 1.0, 10.0, 1000.0]),
    seed=st.integers(0, 2**32),
)
def test_every_row_has_one_place(rows: int, classes: int, clients: int, alpha: float, seed: int) -> None:
    """With five rows a client, a thousand draws for six clients at alpha 0.3 may all fail."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    for parts in (partition.dirichlet(labels, clients, alpha, rng, 3), partition.iid(rows, clients, rng, 3)):
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
        assert min(map(len, parts)) >= 3
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(3, 500), seed=st.integers(0, 2**32))
def test_a_client_is_cut_60_20_20(rows: int, seed: int) -> None:
    mine = np.arange(100, 100 + rows)
    train, val, test = partition.cut(mine, np.random.default_rng(seed))
    assert (len(train), len(train) + len(val)) == (int(0.6 * rows), int(0.8 * rows))
    assert min(len(train), len(val), len(test)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val, test])), mine)
    assert train.dtype == val.dtype == test.dtype == np.int64


@pytest.mark.parametrize(
    ("clients", "alpha", "min_samples", "words"),
    [
        (1, 0.5, 10, "clients is 1"),
        (6, 0.0, 10, "alpha is 0.0"),
        (6, -1.0, 10, "alpha is -1.0"),
        (6, float("nan"), 10, "alpha is nan"),
        (6, float("inf"), 10, "alpha is inf"),
        (6, 1e308, 10, "out of range"),
        (6, 0.5, 2, "min_samples is 2"),
        (200, 0.5, 10, "take at most 10"),
        (9, 0.001, 10, "fewer clients or a larger alpha"),
    ],
)
def test_what_cannot_be_dealt_out(clients: int, alpha: float, min_samples: int, words: str) -> None:
    labels = np.arange(100) % 2
    with pytest.raises(FedekdError, match=words):
        partition.dirichlet(labels, clients, alpha, np.random.default_rng(0), min_samples)


def test_small_sites_are_named() -> None:
    sites = np.repeat([0, 1], [20, 4])
    with pytest.raises(FedekdError, match="site 'north' has 4 rows"):
        partition.by_site(sites, ("south", "north"))
    with pytest.raises(FedekdError, match="'south' is the only site"):
        partition.by_site(sites[:20], ("south",))


def test_fewer_coordinates_give_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).random((60, 700), dtype=np.float32)
    features[:25] += 0.2
    plain = partition.Points.of(features)
    monkeypatch.setattr(partition, "_PLAIN_KMEANS", 0)
    fewer = partition.Points.of(features)
    assert (plain.rows.shape, fewer.rows.shape) == ((60, 700), (60, 60))
    for seed in range(3):
        found = [partition.kmeans_clusters(points, seed) for points in (plain, fewer)]
        np.testing.assert_array_equal(*found)


def test_too_few_rows_to_cluster() -> None:
    with pytest.raises(FedekdError, match="4 rows cannot be grouped into 5"):
        partition.kmeans_clusters(partition.Points(np.zeros((4, 2))), 0)
