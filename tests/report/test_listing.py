"""Lists of methods and datasets, and a partition's drawing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from fedekd import cli, methods
from fedekd.methods import Exchange
from fedekd.parts import Head
from fedekd.report.listing import print_costs, print_datasets, print_methods
from fedekd.report.partition import print_counts
from fedekd.runs.costs import costs
from fedekd.settings import make_settings
from tiny import tiny_private, tiny_proxy


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


def listed(width: int = 80) -> str:
    console = plain(width)
    print_methods(console, methods.known(), methods.groups())
    return written(console)


def entry(name: str) -> str:
    """What is said of a method, its variants included, on one line."""
    lines = listed().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{name} "))
    end = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ") or not lines[i].strip())
    return " ".join(" ".join(lines[start:end]).split())


def test_methods_with_parameters_and_variants() -> None:
    text = listed()
    *lines, _ = text.splitlines()  # the last is how to run them
    for name in methods.known():
        assert sum(line.startswith((f"{name} ", f"  {name} ")) for line in lines) == 1
    assert "beta=1.0" in entry("fedekd")
    line = next(line for line in text.splitlines() if line.split()[:1] == ["fedekd-half"])
    assert line.split() == ["fedekd-half", "gate=constant", "weight=0.5"]
    assert max(map(len, text.splitlines())) <= 80


def test_methods_stand_under_their_family() -> None:
    heads = ["" if line[:1].isspace() else line.partition(" ")[0] for line in listed().splitlines()]
    first = {family: heads.index(family) for family, members in methods.groups().items() if members and family != "all"}
    for family in methods.FAMILIES:
        for name in methods.groups()[family]:
            nearest = max(at for at in first.values() if at < heads.index(name))
            assert nearest == first[family], name


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("fedekd", "the FedeKD paper, Algorithm 1; sends the proxy model; any task; stacked beta=1.0"),
        ("local", "sends nothing; any task; stacked"),
        ("constant", "sends nothing; regression only; runs serially"),
        ("fedper", "Arivazhagan et al., 2019; sends the private model (all but its last layer); any task; stacked"),
        ("fedbn", "sends the private model (all but its norm layers)"),
        ("scaffold", "sends the private model, control; any task; stacked server_lr=1.0"),
        ("fedrod", "Chen and Chao, ICLR 2022; sends the private model; classification only; stacked gamma=1.0"),
    ],
)
def test_what_is_said_of_a_method(name: str, facts: str) -> None:
    assert facts in entry(name)


def test_needs_and_own_methods_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_REGISTRY", methods.known())
    body = {"public": "labels", "stacks": False, "steps": lambda self, round: (Exchange("proxy", part=Head(2)),)}
    methods.register("own")(type("Own", (methods.Method,), {"__doc__": "Of a user", **body}))
    said = "Of a user sends the proxy model (its last 2 layers); any task; runs serially; needs public rows with labels"
    assert entry("own") == f"own {said}"
    assert entry("others") == "others"


def test_the_group_of_all_counts_them() -> None:
    assert f"the {len(methods.groups()['all'])} methods" in entry("all")
    assert entry("controls").endswith(", ".join(methods.groups()["controls"]))


def test_bytes_for_given_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By method and name, for those that fit the task."""
    monkeypatch.setenv("COLUMNS", "80")
    few = {name: methods.get(name) for name in ("local", "fedavg", "fedekd", "scaffold", "constant")}
    monkeypatch.setattr(methods, "_REGISTRY", few)
    given = ["--dataset", "digits", "--private", "tiny:tiny_private", "--proxy", "tiny:tiny_proxy"]
    assert cli.main(["methods", *given]) == 0
    text = capsys.readouterr().out
    table = text[text.index("bytes that each client") :].splitlines()
    rows = {words[0]: words[1:] for words in map(str.split, table) if len(words) == 4}
    made = (make((1, 8, 8), 10).parameters() for make in (tiny_private, tiny_proxy))
    private, proxy = (f"{4 * sum(w.numel() for w in weights):,}" for weights in made)
    assert rows["fedavg"] == ["private", private, private]
    assert rows["fedekd"] == ["proxy", proxy, proxy]
    assert rows["local"] == ["nothing", "0", "0"]
    assert "constant" not in rows
    assert ["control", private, private] in [line.split() for line in table]
    assert max(map(len, text.splitlines())) <= 80


def test_bytes_of_public_rows_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: methods.get(name) for name in ("local", "fedavg")}
    monkeypatch.setattr(methods, "_REGISTRY", few)
    send = Exchange("logits", send=lambda b: {"z": b.outputs["private"]}, split="public", roles=("private",))
    body = {"public": "rows", "steps": lambda self, round: (send,) if round else ()}
    methods.register("asks", family="distillation")(type("Asks", (methods.Method,), {"__doc__": "Public", **body}))
    models = {"private": tiny_private, "proxy": tiny_proxy}

    def said(**given: object) -> str:
        console = plain()
        print_costs(console, costs(make_settings({"dataset": "digits", **models, **given})))
        return written(console)

    with_rows = said(public=0.1)
    size = f"{4 * 10 * 180:,}"  # ten logits for a tenth of 1797 rows
    assert ["asks", "logits", size, size] in [line.split() for line in with_rows.splitlines()]
    assert "less in the first round: asks" in with_rows
    without = said()
    assert "less in the first" not in without
    assert "method 'asks' needs public rows" in without


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
