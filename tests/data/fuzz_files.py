"""Files by seed: whole ones of which every value is known, ones that lie in a known way, and ones with spoilt bytes."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = (
    "a",
    "b",
    "Ä",
    "x y",
    'quo"te',
    "semi;colon",
    "=",
    "a=b",
    "NAN!",
    "\u2028",
    "'",
    "missing",
    "1e",
    "0x1",
    "é" * 30,
)
TOKENS = (
    "", " ", "NA", "nan", "inf", "-inf", "1e999", "-0", "0x10", "1,5", "1.5", "<5", "2024-02-31",
    "2024-02-29", "31.12.1999",
    "True", "None", '"', '""', "\ufeff", "\x00", "=1+1", "9" * 400, "1_000", "٣", "a" * 5000, "\r",
    "NaT", "1e-400", "++1",
)  # fmt: skip


@dataclass
class Attempt:
    """A file, the options it is read with, and what must come of it: "whole", "lie" or "any"."""

    path: Path
    options: list[str]
    expected: str
    x: np.ndarray | None = None
    """The inputs that a whole file holds, or that a spoilt one held before, by the names in ``columns``."""
    columns: tuple[str, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict)


def draw(seed: int, family: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(family.encode())])


def spoilt(rng: np.random.Generator, content: bytes) -> bytes:
    """A few bytes changed, cut off, doubled, put in or moved."""
    made = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 5]))):
        size = len(made)
        at, many = int(rng.integers(0, size + 1)), int(rng.integers(1, 40))
        kind = rng.integers(0, 7)
        if kind == 0 and size:
            made[at % size] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            del made[at:]
        elif kind == 2:
            del made[at : at + many]
        elif kind == 3:
            made[at:at] = rng.integers(0, 256, many, np.uint8).tobytes()
        elif kind == 4:
            made[at:at] = made[at : at + many]
        elif kind == 5:
            made[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**16])))
        else:
            made[at : at + 8] = struct.pack("<Q", int(rng.choice([0, 2**63 - 1, 2**40], shuffle=False)))
    return bytes(made)


# --- tables ----------------------------------------------------------------------------------------------


def _whole_table(rng: np.random.Generator) -> tuple[list[list[str]], dict[str, np.ndarray], str, str]:
    """Header and rows of a table, its inputs by name, and the decimal mark and separator it is written with."""
    rows = int(rng.integers(24, 70))
    separator = str(rng.choice([",", ";", "\t"]))
    decimal = "," if separator != "," and rng.random() < 0.3 else "."
    table, inputs, texts = [], {}, {}
    for k in range(int(rng.integers(1, 6))):
        name = f"{rng.choice(['age', 'crp', 'Größe', 'x y', 'n.'])}{k}"
        kind = rng.integers(0, 4)
        if kind == 0:
            values = rng.integers(-50, 5000, rows)
            inputs[name], written = values.astype(float), [str(v) for v in values]
        elif kind == 1:
            values = np.round(rng.normal(0, 10.0 ** rng.integers(-3, 6), rows), 6)
            inputs[name], written = values, [f"{v:.6f}".replace(".", decimal) for v in values]
        elif kind == 2:
            values = rng.random(rows) < 0.5
            values[:2] = [True, False]
            inputs[name], written = values.astype(float), [str(v) for v in values]
        else:
            few = list(rng.choice([t for t in TEXTS if "\u2028" not in t], 3, replace=False))
            written = [str(few[v]) for v in rng.integers(0, 3, rows)]
            texts |= {f"{name}={t}": np.array([w == t for w in written], float) for t in sorted(set(written))}
        table.append([name, *written])
    table.append(["target", *(str(int(v)) for v in np.arange(rows) % 2)])
    table.append(["site", *(f"s{v}" for v in np.arange(rows) // (rows // 2 + 1))])
    lines = [list(line) for line in zip(*table, strict=True)]
    return lines, {**inputs, **texts}, decimal, separator


def _written(lines: list[list[str]], separator: str) -> bytes:
    def cell(text: str) -> str:
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if any(c in text for c in f'{separator}"\r\n') else text

    return "".join(separator.join(map(cell, line)) + "\n" for line in lines).encode()


def table(seed: int, folder: Path) -> Attempt:
    rng = draw(seed, "table")
    lines, inputs, decimal, separator = _whole_table(rng)
    options = ["--target", "target", "--clients-from", "site", "--decimal", decimal, "--na-values", ""]
    expected = str(rng.choice(["whole", "lie", "any", "any"]))
    if expected == "lie":
        _lie_of_a_table(rng, lines, options)
    elif expected == "any":
        options = _any_options(rng, options)
        for _ in range(int(rng.choice([0, 1, 1, 2, 7]))):
            lines[int(rng.integers(0, len(lines)))][int(rng.integers(0, len(lines[0])))] = str(rng.choice(TOKENS))
    content = _written(lines, separator)
    if expected == "any" and rng.random() < 0.4:
        content = spoilt(rng, content)
    kind = ".tsv" if separator == "\t" and rng.random() < 0.5 else ".csv"
    if rng.random() < 0.3:
        content, kind = gzip.compress(content, mtime=0), f"{kind}.gz"
        if expected == "any" and rng.random() < 0.5:
            content = spoilt(rng, content)
    path = folder / f"t{kind}"
    path.write_bytes(content)
    x = np.stack(list(inputs.values()), 1)
    return Attempt(path, options, expected, x, tuple(inputs), {"rows": len(lines) - 1})


def _lie_of_a_table(rng: np.random.Generator, lines: list[list[str]], options: list[str]) -> None:
    row, place = int(rng.integers(1, len(lines))), int(rng.integers(0, len(lines[0]) - 2))
    kind = rng.integers(0, 9)
    if kind == 0:
        lines[0][place] = " target "
    elif kind == 1:
        lines[row].append("more")
    elif kind == 2:
        lines[row][place] = ""
    elif kind == 3:
        lines[row][-2] = ""
    elif kind == 4:
        lines[row][-1] = ""
    elif kind == 5:
        del lines[1:]
    elif kind == 6:
        options += ["--target", "site"]
    elif kind == 7:
        options += ["--drop", "nothing of that name"]
    else:
        for line in lines[1:]:
            line[-2] = "1"


def _any_options(rng: np.random.Generator, options: list[str]) -> list[str]:
    made = list(options) if rng.random() < 0.7 else options[:2]
    for option, values in {
        "--missing": ("mean", "drop", "flag", "drop"),
        "--dates": ("age", "drop", "text"),
        "--na-values": ("", "NA", "<5,NA", "1"),
        "--group": ("site", "target", "age0"),
        "--subgroups": ("site", "age0", "crp1"),
        "--task": ("regression", "classification"),
        "--drop": ("age0", "site", ""),
    }.items():
        if rng.random() < (0.7 if option == "--missing" else 0.2):
            made += [option, str(rng.choice(values))]
    return made


def parquet(seed: int, folder: Path) -> Attempt:
    import pandas as pd

    rng = draw(seed, "parquet")
    rows = 30
    frame = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.integers(0, 9, rows), "target": np.arange(rows) % 2})
    path = folder / "t.parquet"
    frame.to_parquet(path)
    expected = str(rng.choice(["whole", "any"], p=[0.1, 0.9]))
    if expected == "any":
        path.write_bytes(spoilt(rng, path.read_bytes()))
    return Attempt(path, ["--target", "target"], expected, frame[["a", "b"]].to_numpy(float), ("a", "b"))


# --- arrays ----------------------------------------------------------------------------------------------


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=array.dtype.hasobject)
    return stream.getvalue()


def arrays(seed: int, folder: Path) -> Attempt:
    rng = draw(seed, "arrays")
    rows = int(rng.integers(24, 60))
    x = rng.normal(size=(rows, int(rng.integers(1, 5)))).astype(rng.choice(["<f4", "<f8", ">f8"]))
    parts: dict[str, bytes] = {"x.npy": _npy(x), "y.npy": _npy(np.arange(rows) % 3)}
    parts["client.npy"] = _npy(np.array(["a", "b"])[np.arange(rows) // (rows // 2 + 1)])
    compression, options = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])), list[str]()
    expected = str(rng.choice(["whole", "lie", "any", "any"]))
    if expected == "lie":
        compression, parts = _lie_of_arrays(rng, rows, parts, options, compression)
    path = folder / "a.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    if expected == "any":
        path.write_bytes(spoilt(rng, path.read_bytes()))
    return Attempt(path, options, expected, x.astype(np.float32))


def _lie_of_arrays(
    rng: np.random.Generator, rows: int, parts: dict[str, bytes], options: list[str], compression: int
) -> tuple[int, dict[str, bytes]]:
    strange: dict[str, np.ndarray] = {
        "complex": np.arange(rows) * 1j,
        "days": np.array(["NaT"] * rows, "M8[D]"),
        "nothing": np.full(rows, np.nan),
        "objects": np.array([None] * rows, object),
        "short": np.arange(rows - 1) % 2,
        "records": np.zeros(rows, [("a", "i4")]),
        "letters": np.array(["\ud800"] * rows),
    }
    kind = rng.integers(0, 7)
    chosen = _npy(strange[str(rng.choice(list(strange)))])
    if kind == 0:
        parts["y.npy"] = chosen
    elif kind == 1:
        parts["client.npy"] = chosen
    elif kind == 2:
        shape = str(
            rng.choice(["(10**9,)", "(1000000000000,)", "(-5, 2)", f"({rows}, 99)", "None", "((((", "(2**70,)"])
        )
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        parts["x.npy"] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + parts["x.npy"][128:]
    elif kind == 3:
        parts[str(rng.choice(["x.npy", "y.npy"]))] = bytes(rng.integers(0, 256, 200, np.uint8))
    elif kind == 4:
        compression = int(rng.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    elif kind == 5:
        options += ["--clients-from", str(rng.choice(["y", "x", "ward", ""]))]
    else:
        parts = {name.removesuffix(".npy"): content[20:] for name, content in parts.items()}
    return compression, parts


# --- pictures, models, settings --------------------------------------------------------------------------


def pictures(seed: int, folder: Path) -> Attempt:
    from PIL import Image

    rng = draw(seed, "pictures")
    home = folder / "pictures"
    kind = str(rng.choice(["png", "bmp", "gif", "tif", "jpg"]))
    for k in range(24):
        place = home / ("one", "two")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 5), np.uint8)).save(place / f"{k}.{kind}")
    expected = str(rng.choice(["whole", "any"], p=[0.1, 0.9]))
    if expected == "any":
        file = home / "one" / f"0.{kind}"
        file.write_bytes(spoilt(rng, file.read_bytes()))
    return Attempt(home, [], expected)


def model(seed: int, folder: Path, content: bytes) -> Attempt:
    """A model file with spoilt bytes, or with metadata that says something else."""
    rng = draw(seed, "model")
    expected = str(rng.choice(["whole", "any"], p=[0.05, 0.95]))
    if expected == "any" and rng.random() < 0.5:
        content = spoilt(rng, content)
    elif expected == "any":
        start = 8 + int.from_bytes(content[:8], "little")
        head = json.loads(content[8:start])
        about = head["__metadata__"]
        for _ in range(int(rng.integers(1, 4))):
            about[str(rng.choice(list(about)))] = str(rng.choice(JSON))
        if rng.random() < 0.3:
            name = str(rng.choice([key for key in head if key != "__metadata__"]))
            head[name][str(rng.choice(["dtype", "shape", "data_offsets"]))] = json.loads(str(rng.choice(JSON[:12])))
        text = json.dumps(head).encode()
        content = len(text).to_bytes(8, "little") + text + content[start:]
    path = folder / "m.safetensors"
    path.write_bytes(content)
    return Attempt(path, [], expected)


JSON = (
    "0", "-1", "1e999", "[]", "{}", "null", "true", '"text"', "[1]", "[0, 16]", "1000000000000",
    "[1000000000, 1000000000]",
    "NaN", "[" * 3000, "9" * 400, "9" * 5000, '{"a": 1', "[[1, 2], [3]]", '["a", "b"]', "[null]",
    "[-5]", "1e308", '"\\ud800"',
    '{"decimal": 5}', "[1, 2, 3, 4, 5, 6]", "", "2", "0.5", '["0", "1"]', '"classification"', '"regression"',
    '"fedekd.models:proxy"',
)  # fmt: skip
VALUES = (
    "1", "-1", "0.1", "1e999", "nan", "true", '"text"', "[]", "[1, 2]", "{}", "{ a = 1 }",
    "1979-05-27", '""', '"\\u0000"',
    "9" * 30, "9" * 5000, "[" * 3000, "[" * 50 + "]" * 50, '"0-99999999"', '["fedavg", 5]',
    "'''a\nb'''", "0x" + "f" * 300, "{}}",
)  # fmt: skip
NAMES = (
    "dataset", "methods", "seeds", "alpha", "clients", "rounds", "epochs", "lr", "batch_size", "drop",
    "na_values", "missing", "dates",
    "decimal", "public", "out", "parameters", "parameters.fedekd.beta", "private", "task",
    "split_seed", "metric", "thumbnails",
    ".".join("a" * 2000), "unknown", "block", "data", "partition", "fraction", "group", "subgroups",
)  # fmt: skip


def settings(seed: int, folder: Path) -> Attempt:
    rng = draw(seed, "settings")
    lines = [f"{rng.choice(NAMES)} = {rng.choice(VALUES)}" for _ in range(int(rng.integers(1, 4)))]
    content = "\n".join(lines).encode()
    if rng.random() < 0.3:
        content = spoilt(rng, content)
    path = folder / "s.toml"
    path.write_bytes(content)
    return Attempt(path, [], "any")


def names(seed: int, folder: Path) -> Attempt:
    """A whole file with a name that the system takes and nobody should."""
    rng = draw(seed, "names")
    stem = bytes(rng.choice(np.setdiff1d(np.arange(1, 256), [ord("/")]).astype(np.uint8), int(rng.integers(1, 20))))
    path = folder / os.fsdecode(stem + b".csv")
    path.write_text("a,t\n" + "".join(f"{k},{k % 2}\n" for k in range(30)))
    try:
        stem.decode()
        return Attempt(path, ["--target", "t"], "any")
    except UnicodeDecodeError:
        return Attempt(path, ["--target", "t"], "lie")


FILES: dict[str, Callable[[int, Path], Attempt]] = {
    "table": table,
    "arrays": arrays,
    "pictures": pictures,
    "parquet": parquet,
    "names": names,
}
