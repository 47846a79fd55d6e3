"""``fedekd data inspect``: what a user's file would become, without training on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedekd.data import formats, own, tables
from fedekd.data.column_report import ColumnReport, report
from fedekd.data.columns import Roles
from fedekd.dataset import Reading
from fedekd.errors import FedekdError
from fedekd.files import TABLES, file_kind

ARRAYS = {"x": "the inputs", "y": "the target", "client": "the client of each row"}
MEDMNIST = {"train_images": "the inputs", "train_labels": "the target"}


@dataclass(frozen=True)
class Inspection:
    title: str
    columns: list[ColumnReport]
    warnings: list[str] = field(default_factory=list)
    refused: str = ""
    """Why a run would not take it; "" where it would."""
    accepted: str = ""


def inspect(path: Path, roles: Roles, reading: Reading, task: str | None = None) -> Inspection:
    """Every column or array of a file, or of a folder of files, and what a run would make of it."""
    files, kind = own.find_files(path)
    refused = accepted = ""
    notes: tuple[str, ...] = ()
    try:
        dataset = own.load_own(path, task=task, reading=reading, **vars(roles))
        shape = " x ".join(map(str, dataset.x.shape[1:]))
        goal = f"{dataset.outputs} classes" if dataset.task == "classification" else "a number"
        sites = f", {len(dataset.site_names)} clients" if dataset.site_names else ""
        accepted = f"a run takes it: {len(dataset.y):,} rows of {shape} inputs, to predict {goal}{sites}"
        notes = dataset.notes if kind not in TABLES else ()
    except FedekdError as error:
        refused = str(error)
    if kind in TABLES:
        return _of_tables(path, files, roles, reading, refused, accepted)
    if kind == ".npz":
        shapes = formats.npz_shapes(files[0])
        known = MEDMNIST if "x" not in shapes and "train_images" in shapes else ARRAYS
        named_arrays = {roles.clients_from: "the client of each row", roles.group: "rows that belong together"}
        columns = [
            ColumnReport(key, named_arrays.get(key) or known.get(key, "not used"), f"{dtype} of shape {shape}")
            for key, (shape, dtype) in shapes.items()
        ]
        title = f"{path}: {len(files)} files, the first of them" if path.is_dir() else str(path)
        return Inspection(title, columns, list(notes), refused, accepted)
    return Inspection(f"{path}: pictures", [], list(notes), refused, accepted)


def _of_tables(
    path: Path, files: list[Path], roles: Roles, reading: Reading, refused: str, accepted: str
) -> Inspection:
    table, site = tables.joined_table(files, reading)
    columns, warnings = report(table, roles, reading, site if path.is_dir() else None)
    gaps = [str(name) for name in table.columns if table[name].isna().any()]
    written = _written_gaps(files, gaps) if gaps and reading.na_values is None else {}
    for name, (count, text) in written.items():
        warnings.append(f"{name}: {count} of its missing values are written {text!r}; --na-values '' keeps such texts")
    many = f" in {len(files)} files" if path.is_dir() else ""
    return Inspection(
        f"{path}: {len(table):,} rows{many}, {table.shape[1]} columns", columns, warnings, refused, accepted
    )


def _written_gaps(files: list[Path], columns: list[str]) -> dict[str, tuple[int, str]]:
    """For each column with missing values, how many of them are written as a text such as NA, and the first of them."""
    found: dict[str, tuple[int, str]] = {}
    for file in files:
        if file_kind(file) == ".parquet":
            continue
        as_written = tables.read_table(file, texts=None, reading=Reading(na_values=()))
        usual = tables.read_table(file, texts=None)
        for name in columns:
            gaps = as_written[name][usual[name].isna() & as_written[name].notna()]
            if len(gaps):
                before, text = found.get(name, (0, str(gaps.iloc[0])))
                found[name] = before + len(gaps), text
    return found
