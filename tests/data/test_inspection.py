"""What is said of each column before a run, and what is warned of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.cli import main
from fedekd.data import column_report, columns
from fedekd.data.columns import Roles
from fedekd.data.inspection import Inspection, inspect
from fedekd.dataset import Reading

from .files import csv, npz, write_medmnist

ROWS = 60
RNG = np.random.default_rng(5)


def table(tmp_path: Path, **columns: Callable[[int], object]) -> Path:
    """Rows of a plain table with these columns added."""
    made: dict[str, Callable[[int], object]] = {"age": lambda i: 20 + (i * 37) % 50, **columns, "ill": lambda i: i % 2}
    lines = [";".join(made), *(";".join(str(value(i)) for value in made.values()) for i in range(ROWS))]
    return csv(tmp_path / "ward.csv", "\n".join(lines) + "\n")


def looked_at(path: Path, reading: Reading | None = None, **roles: Any) -> Inspection:
    return inspect(path, Roles(**{"target": "ill", **roles}), reading or Reading())


def warnings_of(found: Inspection, column: str) -> str:
    return " | ".join(next(one for one in found.columns if one.name == column).warnings)


def test_a_plain_table_has_no_warnings(tmp_path: Path) -> None:
    found = looked_at(table(tmp_path, sex=lambda i: "mff"[i % 3], dose=lambda i: round(float(np.sin(i)), 4)))
    assert [(one.name, one.becomes) for one in found.columns] == [
        ("age", "a number"),
        ("sex", "2 columns of 0 and 1"),
        ("dose", "a number"),
        ("ill", "the target: 2 classes"),
    ]
    assert not found.warnings
    assert not any(one.warnings for one in found.columns)
    assert found.accepted == "a run takes it: 60 rows of 4 inputs, to predict 2 classes"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda i: f"{i},{i % 7}", "decimal comma .* 60 columns; --decimal ,"),
        (lambda i: "<5" if i % 9 == 0 else i % 11, "53 of 60 values are numbers but '<5' is not"),
        (lambda i: f"{1 + i % 7} {100 + i}", "numbers with thousands set apart .1 100., taken as text: 60 columns"),
        (lambda i: f"{i % 9}.5 mg/l", "numbers with a unit .0.5 mg/l., taken as text: 9 columns; write bare"),
        (lambda i: f"{90 + i % 9}%", "numbers with a unit .90%., taken as text: 9 columns"),
        (lambda i: f"2024-03-{i % 28 + 1:02d}", "dates, taken as text"),
        (lambda i: 20240301 + i % 28, "dates written as 20240331"),
        (lambda i: 7, "the same in every row"),
        (lambda i: "" if i % 20 else 3 + i, "almost all values are missing .57 of 60"),
        (lambda i: "" if i == 7 else i % 5, "1 of 60 values are missing; --missing"),
        (lambda i: "well" if i % 2 else "sick", "tells the target 'ill' in every row"),
        (lambda i: i % 2 * 100 + (i * 7) % 60, "tells the target 'ill' in every row"),
        (lambda i: ("m", "M ", "f")[i % 3], "differ only in blanks or capital letters"),
        (lambda i: -999 if i % 10 == 0 else i % 13, "does -999 mean that nothing was measured"),
        (lambda i: 1000 + i, "looks like an identifier, from which"),
        (lambda i: f"P{i // 2}", "looks like an identifier: --group odd"),
    ],
)
def test_what_is_warned_of(tmp_path: Path, value: Callable[[int], object], words: str) -> None:
    found = looked_at(table(tmp_path, odd=value))
    assert re.search(words, warnings_of(found, "odd")), warnings_of(found, "odd")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda i: f"{i},{i % 7}", "numbers with a decimal comma (0,0); --decimal ,"),
        (lambda i: f"{i % 28 + 1}.{i % 12 + 1}.2024", "dates; --dates age or --dates drop"),
        (lambda i: "<5" if i % 9 == 0 else i / 7, "53 of 60 values are numbers but '<5' is not; write a number, or "),
        (lambda i: f"{i}.5 mg/l", "numbers with a unit (0.5 mg/l); write bare numbers"),
    ],
)
def test_no_measurement_is_to_be_dropped_for_how_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Callable[[int], object], words: str
) -> None:
    for module in (columns, column_report):
        monkeypatch.setattr(module, "MOST_CATEGORIES", 20)
    found = looked_at(table(tmp_path, odd=value))
    assert f"too many to encode: {words}" in found.refused
    assert "--drop" not in found.refused + warnings_of(found, "odd")


def test_a_measurement_below_the_limit_is_found_with_a_decimal_comma_too(tmp_path: Path) -> None:
    path = table(tmp_path, crp=lambda i: "<5" if i % 9 == 0 else f"{i % 11},5")
    said = warnings_of(looked_at(path, Reading(decimal=",")), "crp")
    assert "53 of 60 values are numbers but '<5' is not" in said
    assert "decimal" not in said
    path = table(tmp_path, cost=lambda i: f"{1 + i % 7}.{100 + i},50")
    assert "numbers with thousands set apart (1.100,50)" in warnings_of(looked_at(path, Reading(decimal=",")), "cost")


def test_a_patient_of_several_rows(tmp_path: Path) -> None:
    path = table(tmp_path, patient_id=lambda i: 5000 + (i * 31) % 30)
    assert "--group patient_id if it names a patient" in warnings_of(looked_at(path), "patient_id")
    found = looked_at(path, group="patient_id")
    assert found.columns[1].becomes == "rows that belong together: 30 groups"


def test_na_as_a_text_is_pointed_out(tmp_path: Path) -> None:
    found = looked_at(table(tmp_path, country=lambda i: ("NA", "DE", "")[i % 3]))
    assert any("country: 20 of its missing values are written 'NA'" in line for line in found.warnings)


def test_the_client_tells_the_label(tmp_path: Path) -> None:
    found = looked_at(table(tmp_path, site=lambda i: f"s{i % 2}"), clients_from="site")
    assert any("one class only" in line for line in found.warnings)


def test_a_number_that_is_a_class(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "a,ill\n" + "".join(f"{i % 7},{i % 2}.0\n" for i in range(30)))
    assert "--task classification" in warnings_of(looked_at(path), "ill")


def test_a_column_that_is_the_target_in_another_unit(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "kg,lb\n" + "".join(f"{k},{k * 2.2}\n" for k in RNG.normal(70, 9, 50)))
    assert "in another unit" in warnings_of(looked_at(path, target="lb"), "kg")


def test_rows_in_place_of_a_header(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "1,2,3\n" + "".join(f"{i},{i % 5},{i % 2}\n" for i in range(30)))
    assert any("header line" in line for line in looked_at(path, target="3").warnings)


def test_what_would_be_refused_is_inspected_all_the_same(tmp_path: Path) -> None:
    found = looked_at(table(tmp_path, name=lambda i: f"n{i}" if i else ""), target=None)
    assert "which column is the target" in found.refused
    assert len(found.columns) == 3


def test_arrays_and_medmnist(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "bloodmnist.npz", classes=8)
    found = looked_at(tmp_path / "bloodmnist.npz", target=None)
    assert [(one.name, one.becomes) for one in found.columns][2:] == [
        ("test_images", "not used"),
        ("test_labels", "not used"),
    ]
    assert found.warnings == [
        "bloodmnist.npz is a MedMNIST file: its 12 train rows are used and split anew for each client; "
        "its 12 test rows are not"
    ]
    plain = looked_at(
        npz(tmp_path / "a.npz", x=np.ones((20, 2)), y=np.arange(20) % 2, client=np.arange(20) % 4), target=None
    )
    assert [one.becomes for one in plain.columns] == ["the inputs", "the target", "the client of each row"]


def test_the_command_and_a_run_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, bmi=lambda i: f"{20 + i % 9},{i % 7}", site=lambda i: f"s{i % 3}")
    assert main(["data", "inspect", str(path), "--target", "ill", "--clients-from", "site"]) == 0
    shown = capsys.readouterr().out
    assert "bmi: numbers with a decimal comma" in shown
    assert "a run takes it: 60 rows" in shown
    given = ["--target", "ill", "--clients-from", "site", "--rounds", "1", "--epochs", "1", "--methods", "fedavg"]
    out = str(tmp_path / "out")
    assert main(["run", "--dataset", str(path), *given, "--out", out, "--models", "none", "--no-report"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "ward.csv: 60 rows; 61 inputs from 2 columns (1 of numbers, 1 of text)" in lines
    assert any(line.startswith("warning: bmi: numbers with a decimal comma") for line in lines)
