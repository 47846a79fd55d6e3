from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedekd.data import Dataset, Federation, class_counts, class_names, federate, federation, load_dataset, partition
from fedekd.errors import FedekdError


def table(rows: int = 200, **changes: Any) -> Dataset:
    rng = np.random.default_rng(5)
    x = np.column_stack([rng.normal(3, 2, rows), np.full(rows, 0.1), rng.normal(-1, 1e-3, rows)])
    made = Dataset("t", "regression", x, rng.normal(50, 10, rows), 1, scale=None, standardise_target=True)
    return replace(made, **changes)


def all_rows(made: Federation) -> np.ndarray:
    return np.concatenate([rows for split in made.clients for rows in (split.train, split.val, split.test)])


def test_digits_by_default() -> None:
    made = federate(load_dataset("digits"))
    assert made.names == ("0", "1", "2", "3", "4", "5")
    assert {key: made.partition[key] for key in ("kind", "alpha", "clients", "seed")} == {
        "kind": "dirichlet",
        "alpha": 0.1,
        "clients": 6,
        "seed": 0,
    }
    np.testing.assert_array_equal(np.sort(all_rows(made)), np.arange(1797))
    np.testing.assert_allclose(np.array([0, 8, 16]) * made.gain + made.shift, [-1, 0, 1])
    assert made.shift.shape == made.gain.shape == ()
    assert made.gain.dtype == np.float32
    assert (made.target_mean, made.target_std) == (0, 1)


def test_the_fingerprint_tells_partitions_apart() -> None:
    data = load_dataset("digits")
    prints = [federate(data, **how).partition["fingerprint"] for how in ({}, {}, {"seed": 1}, {"partition": "iid"})]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert all(len(each) == 16 for each in prints)


def test_statistics_use_training_rows_only() -> None:
    data = table()
    made = federate(data, partition="iid", clients=4)
    train = np.concatenate([split.train for split in made.clients])
    rest = np.setdiff1d(np.arange(200), train)
    x, y = data.x.copy(), data.y.copy()
    x[rest], y[rest] = 1e6, -1e6
    spoilt = federate(replace(data, x=x, y=y), partition="iid", clients=4)
    np.testing.assert_array_equal(made.gain, spoilt.gain)
    np.testing.assert_array_equal(made.shift, spoilt.shift)
    assert (made.target_mean, made.target_std) == (spoilt.target_mean, spoilt.target_std)
    assert made.target_mean == pytest.approx(data.y[train].mean(), rel=1e-5)
    ready = data.x[train] * made.gain + made.shift
    np.testing.assert_allclose(ready.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(ready.std(0), [1, 0, 1], atol=1e-3)


def test_a_fraction_thins_training_and_validation_rows_and_no_others() -> None:
    data = load_dataset("digits")
    whole, *thinner = (federate(data, seed=3, public=0.1, fraction=f) for f in (1, 0.5, 0.1, 0.03, 1e-9))
    for made, fraction in zip(thinner, (0.5, 0.1, 0.03, 1e-9), strict=True):
        assert made.partition["fraction"] == fraction
        np.testing.assert_array_equal(made.public, whole.public)
        for own, all_of_it in zip(made.clients, whole.clients, strict=True):
            np.testing.assert_array_equal(own.test, all_of_it.test)
            assert len(own.train) == max(1, np.ceil(fraction * len(all_of_it.train)))
            assert len(own.val) == np.ceil(fraction * len(all_of_it.val))
    for larger, smaller in pairwise((whole, *thinner)):
        for some, few in zip(larger.clients, smaller.clients, strict=True):
            assert set(few.train) <= set(some.train)
            assert set(few.val) <= set(some.val)
    assert len({made.partition["fingerprint"] for made in (whole, *thinner)}) == 5


def test_a_fraction_of_one_is_what_was_there_before_and_others_are_the_same_again() -> None:
    data = load_dataset("digits")
    plain, one = federate(data), federate(data, fraction=1)
    assert plain.partition == one.partition
    assert "fraction" not in one.partition
    first, again, other = (
        federate(data, fraction=0.2),
        federate(data, fraction=0.2),
        federate(data, fraction=0.2, seed=1),
    )
    assert first.partition == again.partition != other.partition


def test_a_fraction_counts_without_the_error_of_a_float() -> None:
    made = federate(table(1000), partition="iid", clients=6, fraction=0.07)
    assert [len(split.train) for split in made.clients] == [7] * 6  # of 100, and 0.07 * 100 is above 7


def test_statistics_and_medians_come_from_the_rows_that_are_kept() -> None:
    data = table()
    made = federate(data, partition="iid", clients=4, fraction=0.1)
    train = np.concatenate([split.train for split in made.clients])
    assert made.target_mean == pytest.approx(data.y[train].mean(), rel=1e-5)
    np.testing.assert_allclose((data.x[train] * made.gain + made.shift).mean(0), 0, atol=1e-3)
    holes = data.x.copy()
    holes[made.clients[0].test, 0] = np.nan
    filled = federate(replace(data, x=holes, gaps=True), partition="iid", clients=4, fraction=0.1).dataset.x
    assert (filled[made.clients[0].test, 0] == np.median(data.x[train, 0])).all()


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan"), "0.1", True])
def test_a_fraction_that_is_none(fraction: Any) -> None:
    with pytest.raises(FedekdError, match=r"fraction is .*; give a number above 0 and at most 1"):
        federate(table(), partition="iid", fraction=fraction)


def test_a_constant_feature_is_only_centred() -> None:
    made = federate(table(), partition="iid")
    assert made.gain[1] == 1
    assert np.isfinite(made.shift).all()
    flat = federate(table(y=np.full(200, 7.0)), partition="iid")
    assert (flat.target_mean, flat.target_std) == (7, 1)


def test_float_images_are_standardised_by_channel() -> None:
    x = np.random.default_rng(0).normal([[[1.0]], [[20.0]]], [[[1.0]], [[5.0]]], (60, 2, 4, 3))
    made = federate(Dataset("f", "classification", x, np.arange(60) % 3, 3, scale=None), clients=3, alpha=10)
    assert made.gain.shape == made.shift.shape == (2, 1, 1)
    np.testing.assert_allclose(made.gain.ravel(), [1, 0.2], rtol=0.1)


def test_regression_is_parted_by_clusters_of_the_inputs() -> None:
    data = table()
    made = federate(data, clients=3, alpha=1.0)
    clusters = federation.input_clusters(data, 0)
    assert set(clusters) == set(range(5))
    again = federate(data, clients=3, alpha=1.0, clusters=clusters)
    assert made.partition == again.partition
    with pytest.raises(FedekdError, match=r"clusters has shape \(3,\) for 200 rows"):
        federate(data, clusters=np.zeros(3))


def test_clusters_are_kept_only_while_the_dataset_lives() -> None:
    data = table()
    federation.input_clusters(data, 3)
    before = len(federation._CLUSTERS)
    del data
    gc.collect()
    assert len(federation._CLUSTERS) < before


def test_images_are_looked_at_once_for_the_clusters_of_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_PLAIN_KMEANS", 0)
    asked, real = [], partition._coordinates
    monkeypatch.setattr(partition, "_coordinates", lambda features: asked.append(1) or real(features))
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    data, fresh = (Dataset("f", "regression", x, np.arange(40.0), 1) for _ in range(2))
    found = [federation.input_clusters(data, seed) for seed in (0, 1)]
    assert len(asked) == 1
    np.testing.assert_array_equal(federation.input_clusters(fresh, 1), found[1])
    assert len(asked) == 2
    before = len(federation._POINTS)
    del data
    gc.collect()
    assert len(federation._POINTS) < before


def test_float_image_regression_needs_no_scale() -> None:
    x = np.random.default_rng(0).normal(0, 9, (60, 1, 3, 3))
    data = Dataset("f", "regression", x, np.arange(60.0), 1, scale=None)
    pixels = federation._features(data)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert len(federate(data, clients=2, alpha=10).clients) == 2


def test_sites_are_taken_when_there_are_any() -> None:
    data = table(sites=np.repeat([0, 1, 2], [100, 95, 5]), site_names=("a", "b", "c"))
    made = federate(data)
    assert made.names == ("a", "b", "c")
    assert (made.partition["kind"], made.partition["clients"], made.partition["alpha"]) == ("sites", 3, None)
    assert [(len(s.train), len(s.val), len(s.test)) for s in made.clients] == [(60, 20, 20), (57, 19, 19), (3, 1, 1)]
    assert federate(data, partition="iid", clients=2).names == ("0", "1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"partition": "sites"}, "no sites of its own"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"clients": "six"}, "clients is 'six'"),
        ({"clients": 0}, "clients is 0"),
        ({"clients": 21, "partition": "iid"}, "take at most 20"),
    ],
)
def test_what_a_user_may_get_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedekdError, match=words):
        federate(table(), **options)


def test_counts_of_classes() -> None:
    made = federate(load_dataset("digits"), alpha=0.5)
    counts = class_counts(made)
    assert counts.shape == (6, 10)
    assert class_names(made) == tuple("0123456789")
    np.testing.assert_array_equal(counts.sum(0), np.bincount(made.dataset.y))


def test_counts_of_a_target_are_by_fifths_or_by_value() -> None:
    data = load_dataset("diabetes")
    made = federate(data, partition="iid")
    assert class_counts(made).sum() == 442
    np.testing.assert_allclose(class_counts(made).sum(0), 442 / 5, atol=5)
    assert class_names(made)[0].startswith("25 to ")
    grades = federate(replace(data, y=np.arange(442) % 4), partition="iid")
    assert class_names(grades) == ("0", "1", "2", "3")
    assert class_counts(grades).shape == (6, 4)
    skewed = federate(replace(data, y=np.maximum(0, np.arange(442) - 300)), partition="iid")
    assert class_counts(skewed).sum() == 442
    assert len(class_names(skewed)) == class_counts(skewed).shape[1] < 5
