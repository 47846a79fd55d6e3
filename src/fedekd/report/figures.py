"""The report's charts as files for a manuscript: PDF, SVG or PNG, drawn from the page's own specifications."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from fedekd.errors import FedekdError, unknown
from fedekd.files import write_whole
from fedekd.report.html.chart import Chart, Row, Spec, variant
from fedekd.report.html.section import Page
from fedekd.report.page import make_page
from fedekd.report.painting import CONFIG, painted

FORMATS = ("pdf", "svg", "png")
COLUMN, WHOLE = 245, 504  # points: one column, and the whole width of a page
SCALE = 7 / 12  # the page's letters of 12 pixels become 7 points
DPI = 300
LOCALE = {"decimal": ".", "thousands": ",", "grouping": [3], "currency": ["", ""], "percent": " %"}


def write_figures(
    folder: str | Path, format: str = "pdf", out: Path | None = None, method: str | None = None, seed: int | None = None
) -> list[Path]:
    """Draw everything the folder's results give something for, and write what is seen there to ``captions.md``.

    ``method`` and ``seed`` are for charts of one run.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    target = Path(out) if out else Path(folder) / "figures"
    paths, captions = [], []
    for name, spec, told in _figures(make_page(folder), method, seed):
        path = target / f"{_plain(name)}.{format}"
        write_whole(path, _drawn(spec, format))
        paths.append(path)
        captions.append(f"## {path.name}\n{spec['description']}{told}\n")
    write_whole(target / "captions.md", "\n".join(captions).encode())
    return [*paths, target / "captions.md"]


def _figures(page: Page, method: str | None, seed: int | None) -> Iterator[tuple[str, Spec, str]]:
    """Every chart for the chosen method and seed, and for each option of the page's other choices; with what is chosen
    in words."""
    choices = {choice.name: choice for choice in page.choices}
    if "seed" not in choices and (method is not None or seed is not None):
        raise FedekdError("--method and --seed are for the figures of one run; a study's figures hold them all")
    options = {name: range(len(choice.options)) for name, choice in choices.items()}
    if "method" in choices:
        known = choices["method"].options
        if method is not None and method not in known:
            raise unknown("method in these results", method, known)
        at = choices["method"].first if method is None else known.index(method)
        options["method"] = range(at, at + 1)
    if "seed" in choices:
        known = choices["seed"].options
        if seed is not None and str(seed) not in known:
            raise FedekdError(f"no seed {seed} in these results; there are {', '.join(known)}")
        at = 0 if seed is None else known.index(str(seed))
        options["seed"] = range(at, at + 1)
    for chart in page.charts():
        content = chart.data()
        for numbers in itertools.product(*(options.get(name, range(1)) for name in chart.follows)):
            rows = [
                dict(zip(content["fields"], row, strict=True)) for row in content["rows"].get(variant(*numbers), [])
            ]
            if not rows:
                continue
            chosen = {name: options[name][0] for name in options} | dict(zip(chart.follows, numbers, strict=True))
            words = {name: choices[name].options[number] for name, number in chosen.items()}
            apart = [words[name] for name in chart.follows if len(options.get(name, ())) > 1]
            own = [_told(choices[name].label, words[name]) for name in (*chart.marks, *chart.follows) if name in words]
            told = f" Chosen: {', '.join(own)}." if own else ""
            name = "-".join([chart.name or chart.id, *map(_plain, apart)])
            yield name, _spec(chart, content["spec"], rows, words), told


def _told(label: str, option: str) -> str:
    return option if option.startswith(label) else f"{label.lower()} {option}"


def _spec(chart: Chart, content: Spec, rows: list[Row], words: dict[str, str]) -> Spec:
    """The specification as the page's script would complete it, on white."""
    lines = content.get("usermeta", {})
    field = lines.get("rows")
    count = field if isinstance(field, int) else len({row[field] for row in rows}) if field else 0
    height = {"height": lines["step"] * count * (0.7 if count > 20 else 1)} if count else {}
    of = [words["method"]] if "method" in chart.follows else []
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "title": {"text": ": ".join([*of, chart.title]), "anchor": "start", "fontSize": 15, "fontWeight": 400},
        **painted(content),
        **height,
        "params": [{"name": name, "value": value} for name, value in words.items()],
        "width": max((COLUMN if chart.half else WHOLE) / SCALE, lines.get("least", 0)),
        "data": {"values": rows},
        "config": CONFIG,
    }


def _drawn(spec: Spec, format: str) -> bytes:
    import vl_convert

    if format == "png":
        return vl_convert.vegalite_to_png(spec, scale=SCALE * DPI / 72, ppi=72, format_locale=LOCALE)
    unit = "pt" if format == "svg" else ""  # which a PDF has by itself
    svg = re.sub(
        r'^(<svg [^>]*?)width="([\d.]+)" height="([\d.]+)"',
        lambda m: f'{m[1]}width="{float(m[2]) * SCALE:g}{unit}" height="{float(m[3]) * SCALE:g}{unit}"',
        vl_convert.vegalite_to_svg(spec, format_locale=LOCALE),
    )
    return svg.encode() if format == "svg" else vl_convert.svg_to_pdf(svg)


def _plain(name: str) -> str:
    """A name made of characters that every file system accepts."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")
