"""Columns of text that are likely to hold something else, such as numbers with a unit, and what to do about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.dataset import Reading

if TYPE_CHECKING:
    import pandas as pd

COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+(,\d+)?|\d*,\d+)")
POINT = re.compile(r"[+-]?\d*\.\d+")
DRESSED = {  # numbers with something that is none
    "thousands set apart": re.compile(r"[+-]?\d{1,3}([.,' \u00a0\u202f]\d{3})+([.,]\d+)?"),
    "a unit": re.compile(r"[+-]?\d+([.,]\d+)?(\s*[%‰]|\s+[^\W\d][^\s]*)"),
}
AS_DATES = "--dates age or --dates drop"


@dataclass(frozen=True)
class Misread:
    """Values that are taken as text and are likely to be something else."""

    what: str
    taken: str
    remedy: str


def misread(known: pd.Series, reading: Reading) -> Misread | None:
    import pandas as pd

    texts = known.astype(str).str.strip()
    different = texts.drop_duplicates()
    taken = f"taken as text: {len(different)} columns"
    pattern, mark, other = (COMMA, ",", "comma") if reading.decimal == "." else (POINT, ".", "point")
    marked = different.str.fullmatch(pattern)
    numeric = pd.to_numeric(texts.str.replace(reading.decimal, ".", regex=False), errors="coerce").notna()
    if marked.mean() > 0.5:
        return Misread(f"numbers with a decimal {other} ({different[marked].iloc[0]})", taken, f"--decimal {mark}")
    if 0.5 <= numeric.mean() < 1:
        strange = texts[~numeric].iloc[0][:20]
        return Misread(
            f"{int(numeric.sum())} of {len(texts)} values are numbers but {strange!r} is not",
            "so all are taken as text",
            f"write a number, or --na-values {strange!r} with --missing",
        )
    for what, pattern in DRESSED.items():
        if (dressed := different.str.fullmatch(pattern)).mean() > 0.5 and dressed.sum() > 3:
            return Misread(f"numbers with {what} ({different[dressed].iloc[0][:20]})", taken, "write bare numbers")
    return None
