"""The K-means clusters that part a regression's rows, kept beside the data: finding them takes longer than loading."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np

from fedekd.data.federation import input_clusters
from fedekd.data.formats import read_npz
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError
from fedekd.files import write_whole


def by_clusters(dataset: Dataset, partition: str) -> bool:
    """Whether `federate` would deal the rows out by clusters of the inputs."""
    by_dirichlet = partition == "dirichlet" or (partition == "auto" and dataset.sites is None)
    return dataset.task == "regression" and by_dirichlet


def clusters_for(dataset: Dataset, checksum: str, seed: int, folder: Path) -> np.ndarray:
    """A regression's K-means clusters: from ``folder/clusters`` where they fit the data, else found and kept there."""
    path = folder / "clusters" / f"{dataset.name}-{seed}.npz"
    with contextlib.suppress(FedekdError):
        saved = read_npz(path, ("data", "clusters"))
        if str(saved["data"]) == checksum and saved["clusters"].shape == dataset.y.shape:
            return np.asarray(saved["clusters"], np.int64)
    try:
        clusters = input_clusters(dataset, seed)
    except ImportError:
        raise FedekdError(
            f"partitioning {dataset.name} needs scikit-learn or its clusters in {path}; "
            "a study's --dry-run puts them there on a machine that has scikit-learn"
        ) from None
    file = io.BytesIO()
    np.savez(file, clusters=clusters, data=np.array(checksum))
    with contextlib.suppress(FedekdError):  # a read-only data folder costs the time again, nothing else
        write_whole(path, file.getvalue())
    return clusters
