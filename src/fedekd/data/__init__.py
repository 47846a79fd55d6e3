"""Datasets by name or from the user's own files, and federations made of them."""

from __future__ import annotations

import importlib
import pkgutil

from fedekd.data.federation import federate
from fedekd.data.fetch import fetch
from fedekd.data.public import PublicRows, find_public
from fedekd.data.registry import Entry, catalogue, data_folder, load_dataset, register_dataset
from fedekd.data.show import class_counts, class_names
from fedekd.dataset import Dataset
from fedekd.federation import Federation, Split

# A new file here that calls register_dataset is a new dataset; nothing else changes.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Dataset",
    "Entry",
    "Federation",
    "PublicRows",
    "Split",
    "catalogue",
    "class_counts",
    "class_names",
    "data_folder",
    "federate",
    "fetch",
    "find_public",
    "load_dataset",
    "register_dataset",
]
