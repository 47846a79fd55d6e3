"""A page as one HTML file that needs nothing from outside: styles, scripts and data are inside it.

Jinja escapes every text that goes in. The page's policy allows only the scripts it was made with and no connection at
all, so that nothing in a site's name or a label could run or call home even if it slipped through.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedekd import __version__
from fedekd.report import palette
from fedekd.report.html.chart import Chart
from fedekd.report.html.section import Page

NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:points?|[kMGT]?B|s|min|h)\b))")


def render(page: Page) -> str:
    scripts = [vega(), asset("page.js")]
    style = asset("page.css").replace("/*light*/", palette.variables(palette.LIGHT))
    style = style.replace("/*dark*/", palette.variables(palette.DARK))
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src {hashes}"
    )
    data = {
        "choices": {choice.name: vars(choice) for choice in page.choices},
        "charts": {chart.id: _chart_data(chart) for chart in page.charts()},
    }
    template = environment().get_template("page.html")
    return template.render(
        page=page,
        policy=policy,
        style=Markup(style),
        scripts=[Markup(s) for s in scripts],
        data=Markup(_json(data)),
        version=__version__,
    )


def _chart_data(chart: Chart) -> dict[str, Any]:
    data = chart.data()
    columns = [{**column, "title": unbroken(column["title"])} for column in data["columns"]]
    return {**data, "columns": columns, "notes": {key: unbroken(note) for key, note in data["notes"].items()}}


def _json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Bundling takes a second or two."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    script = script.replace("\r\n", "\n").replace("\r", "\n")  # as browsers read it, for its hash in the policy
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def asset(name: str) -> str:
    return files("fedekd.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fedekd.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: unbroken(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.filters["spans"] = _spans
    made.filters["options"] = _options
    return made


def unbroken(text: str) -> str:
    """Text in which no line breaks between a number and its unit."""
    return NUMBER_AND_UNIT.sub("\u00a0", text)


def _options(text: str) -> Markup:
    """Text in which commands' options are marked as code, so that no line breaks at their hyphens."""
    return Markup(
        re.sub(r"--[a-z][a-z-]*(?: [a-z0-9][\w-]*(?=[ .;,]|$))?", r"<code>\g<0></code>", str(escape(unbroken(text))))
    )


def _spans(columns: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """The groups of a table's columns, each with how many columns it is over."""
    return [(group, len(list(own))) for group, own in groupby(columns, lambda column: column[0])]
