"""Whatever stands in a results folder, a reader gets an answer or one line."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest

import fedekd
from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.runs.records import RECORD_VERSION, read_record
from fedekd.validation import parse_json

RECORDED = Path(__file__).parents[1] / "recorded" / "v0.1" / "whole"
LINES = [json.loads(line) for line in (RECORDED / "results.jsonl").read_text().splitlines()]
GATED = next(place for place, line in enumerate(LINES) if line["trust"])
OTHER = (None, True, -1, 10**400, 0.5, float("nan"), "text", "\ud800", [], [1], {}, {"a": 1})
GONE = object()


def places(value, path=()):
    """Every field in it; of a list the first item stands for all."""
    if isinstance(value, dict):
        for name in value:
            yield (*path, name)
            yield from places(value[name], (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(value, path, new):
    value = copy.deepcopy(value)
    inner = value
    for part in path[:-1]:
        inner = inner[part]
    if new is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def alike(one, other):
    return type(one) is type(other) and one == other


CHANGES = [(path, new) for path in places(LINES[GATED]) for new in (GONE, *OTHER)]


def folder_of(where, lines):
    where.mkdir()
    (where / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where


def test_an_old_record_loads_without_loss():
    for line, record in zip(LINES, fedekd.load(RECORDED).records, strict=True):
        assert "version" not in line
        assert record == {**line, "version": RECORD_VERSION}


def test_a_newer_or_foreign_record_is_refused(tmp_path, capsys):
    newer = {**LINES[1], "version": RECORD_VERSION + 1, "clients": "in another form"}
    for line, why in ((newer, f"version {RECORD_VERSION + 1}"), ({"loss": 0.1}, "not a record of a run")):
        folder = folder_of(tmp_path / str(len(why)), [LINES[0], line])
        assert main(["table", str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"line 2 of {folder / 'results.jsonl'}" in error
        assert why in error
        assert error.count("\n") == 1


def read(line):
    return read_record(parse_json(json.dumps(line).encode()), "line 1 of FILE")


def refused(line):
    try:
        read(line)
    except (ValueError, FedekdError):
        return True
    return False


def test_every_field_may_be_missing_or_wrong():
    for path, new in CHANGES:
        try:
            read(changed(LINES[GATED], path, new))
        except FedekdError as error:
            text = str(error)
            assert text.startswith("line 1 of FILE ")
            assert "; " in text, "a remedy"
            assert path[0] in text or path == ("key",)
            assert "\n" not in text
        except UnicodeEncodeError:
            assert new == "\ud800"


@pytest.mark.parametrize("path", places(LINES[GATED]), ids=lambda path: ".".join(map(str, path)))
def test_what_is_let_through_is_reported_on(tmp_path, capsys, path):
    for number, new in enumerate((GONE, *OTHER)):
        line = changed(LINES[GATED], path, new)
        if refused(line) and new not in (GONE, "\ud800"):
            continue
        folder = folder_of(tmp_path / str(number), [*LINES[:GATED], line, *LINES[GATED + 1 :]])
        for command in ("report", "table"):
            code = main([command, str(folder)])
            error = capsys.readouterr().err
            assert (code, error.count("\n")) in ((0, 0), (2, 1)), error


@pytest.mark.parametrize(
    "command",
    [
        "report FOLDER",
        "table FOLDER",
        "figures FOLDER",
        "export FOLDER --client 0 --method fedekd --to model.safetensors",
        "run --dataset diabetes --clients 2 --partition iid --rounds 3 --methods fedekd --out FOLDER",
    ],
)
def test_every_command_says_which_line_and_field(tmp_path, monkeypatch, capsys, command):
    folder = Path(shutil.copytree(RECORDED, tmp_path / "folder"))
    lines = [*LINES[:2], changed(LINES[2], ("clients", 0, "delta"), "none"), *LINES[3:]]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("FOLDER", str(folder)).split()) == 2
    error = capsys.readouterr().err
    assert f"line 3 of {folder / 'results.jsonl'} cannot be read: clients[0].delta must be a number" in error
    assert len([line for line in error.splitlines() if not line.startswith("loading ")]) == 1


def test_details_may_be_damaged(tmp_path, capsys):
    folder = Path(shutil.copytree(RECORDED, tmp_path / "folder", ignore=shutil.ignore_patterns("models")))
    file = folder / "details" / f"{LINES[GATED]['key']}.json"
    whole = json.loads(file.read_text())
    for path in places(whole):
        for new in (GONE, "text", [], [1]):
            file.write_text(json.dumps(changed(whole, path, new)))
            code = main(["report", str(folder)])
            error = capsys.readouterr().err
            assert (code, error.count("\n")) in ((0, 0), (2, 1)), (path, new, error)
            assert code == 0 or str(file) in error
