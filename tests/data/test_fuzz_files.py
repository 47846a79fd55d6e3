"""Files by seed, read through the command line: no traceback, nothing that takes longer than ten seconds, nothing taken
for what it is not. `make fuzz` reads 2,000 of them, the tests a share."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.cli import main, make_parser
from fedekd.data import load_dataset
from fedekd.dataset import Reading
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.settings import make_settings, read_toml
from time_limit import in_time
from trained import patients, train, write_patients

from . import fuzz_files
from .fuzz_files import Attempt

COUNT = int(os.environ.get("FEDEKD_FUZZ", "140"))
FAMILIES = {"table": 0.4, "arrays": 0.2, "pictures": 0.05, "parquet": 0.1, "names": 0.05, "model": 0.1, "settings": 0.1}
LIMIT = 10.0  # seconds


def answered(*words: str) -> tuple[int, str]:
    """The status and what stands on stderr; a traceback would come through as its exception."""
    out, err = io.StringIO(), io.StringIO()
    with in_time(LIMIT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    text = err.getvalue()
    assert status in (0, 2), text
    if status:
        assert text.startswith("fedekd: ")
        assert text.count("\n") == 1
        assert "out of memory" not in text
    return status, text


def loaded(attempt: Attempt) -> Any:
    given = make_parser().parse_args(["data", "inspect", str(attempt.path), *attempt.options])
    named = {name: getattr(given, name) for name in ("target", "task", "clients_from", "group", "subgroups")}
    reading = ("drop", "decimal", "missing", "dates", "na_values")
    settings = make_settings({name: getattr(given, name) for name in reading})
    return load_dataset(str(attempt.path), reading=Reading.of(settings), **named)


def check_taken(attempt: Attempt) -> None:
    """What was taken is what stands in the file."""
    data = loaded(attempt)
    assert np.isfinite(data.x).all() or (data.gaps and not np.isinf(data.x).any())
    assert np.isfinite(data.y).all()
    for name in (*data.columns, *data.labels, *data.site_names, data.name):
        name.encode()
    assert len(set(data.columns)) == len(data.columns)
    if attempt.expected == "whole" and attempt.x is not None:
        if data.columns:
            assert set(data.columns) == set(attempt.columns)
            wanted = attempt.x[:, [attempt.columns.index(name) for name in data.columns]]
        else:
            wanted = attempt.x
        np.testing.assert_allclose(data.x, wanted.astype(np.float32), rtol=1e-6)
    elif attempt.path.suffix == ".npz":  # every array has a checksum: it is as it was, or refused
        np.testing.assert_array_equal(data.x, attempt.x)
    elif "rows" in attempt.kept:
        assert len(data.y) <= attempt.kept["rows"] + 50


def check_file(attempt: Attempt) -> None:
    where = str(attempt.path)
    status, told = answered("data", "inspect", where, *attempt.options)
    plain = list(attempt.options)
    if "--subgroups" in plain:
        at = plain.index("--subgroups")
        del plain[at : at + 2]
    status, told = answered("data", "show", where, *plain, "--clients", "2", "--partition", "iid")
    if attempt.expected == "lie":
        assert status == 2
    if attempt.expected == "whole":
        assert status == 0, told
    try:
        check_taken(attempt)
    except FedekdError:
        assert attempt.expected != "whole"


@pytest.mark.parametrize("family", list(fuzz_files.FILES))
def test_files(family: str, tmp_path: Path) -> None:
    if family == "parquet":
        pytest.importorskip("pyarrow")
    for seed in range(max(3, int(COUNT * FAMILIES[family]))):
        folder = tmp_path / "now"
        folder.mkdir()
        attempt = fuzz_files.FILES[family](seed, folder)
        try:
            check_file(attempt)
        except BaseException as error:
            error.add_note(f"{family}, seed {seed}: {attempt.path!s} {attempt.options} ({attempt.expected})")
            raise
        shutil.rmtree(folder)


def test_models(tmp_path: Path) -> None:
    trained = train(tmp_path / "out", patients(write_patients(tmp_path / "patients.csv")), rounds=1)
    export(trained.folder, "north", tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    for seed in range(max(3, int(COUNT * FAMILIES["model"]))):
        attempt = fuzz_files.model(seed, tmp_path, content)
        try:
            status, told = answered("predict", str(attempt.path), str(tmp_path / "patients.csv"))
        except BaseException as error:
            error.add_note(f"model, seed {seed}")
            raise
        assert attempt.expected != "whole" or status == 0, told


def test_settings(tmp_path: Path) -> None:
    for seed in range(max(3, int(COUNT * FAMILIES["settings"]))):
        attempt = fuzz_files.settings(seed, tmp_path)
        try:
            with in_time(LIMIT), contextlib.suppress(FedekdError):
                make_settings(read_toml(attempt.path))
        except BaseException as error:
            error.add_note(f"settings, seed {seed}: {attempt.path.read_bytes()[:300]!r}")
            raise
