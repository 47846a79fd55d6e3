"""Lists of methods and datasets, and a partition's drawing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedekd import methods
from fedekd.report.listing import print_datasets, print_methods
from fedekd.report.partition import print_counts


@dataclass
class Entry:
    name: str
    present: bool
    title: str = "A dataset"
    task: str = "classification"
    where: str = ""
    samples: int = 1797
    shape: str = "1x8x8"
    note: str = ""


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def written(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_methods_with_parameters_and_variants() -> None:
    console = plain()
    print_methods(console, methods.known())
    text = written(console)
    for name in methods.known():
        assert name in text
    assert "beta=1.0" in text
    line = next(line for line in text.splitlines() if "fedekd-half" in line)
    assert line.split() == ["fedekd-half", "gate=constant", "weight=0.5"]
    assert "(regression only)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_datasets() -> None:
    console = plain()
    print_datasets(console, [Entry("digits", True), Entry("octmnist", False)], Path("somewhere"))
    text = written(console)
    assert "yes" in next(line for line in text.splitlines() if line.startswith("digits"))
    assert "no" in next(line for line in text.splitlines() if line.startswith("octmnist"))
    assert "1,797" in text
    assert "in somewhere" in text
    assert "fedekd data fetch octmnist" in text


def test_datasets_when_all_are_here() -> None:
    console = plain()
    print_datasets(console, [Entry("digits", True)], Path("somewhere"))
    assert "fetch" not in written(console)


def test_partition_counts_and_sums() -> None:
    console = plain()
    print_counts(console, ["north", "south"], ["0", "1"], [[10, 0], [5, 80]])
    north, south, everyone = written(console).splitlines()[2:5]
    assert north.split() == ["north", "10", "▂10", "·"]
    assert south.split() == ["south", "85", "▁", "5", "█80"]
    assert everyone.split() == ["all", "95", "15", "80"]


def test_many_classes_go_on_below() -> None:
    console = plain()
    print_counts(console, ["a", "b"], [str(k) for k in range(100)], [[500] * 100] * 2)
    text = written(console)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("client") > 5
