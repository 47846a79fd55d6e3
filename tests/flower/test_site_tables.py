"""A site's table as its hospital writes it: site.toml says how it is read, and it fits the others' schema."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.data import load_dataset
from fedekd.errors import FedekdError
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import read_site
from fedekd.flower.setup.init import init_site

PLAIN = "crp,sex,ill\n" + "".join(f"{i / 8},{'mf'[i % 2]},{i // 2 % 2}\n" for i in range(40))


def test_a_table_with_a_decimal_comma_fits_the_schema_of_one_without(tmp_path) -> None:
    (tmp_path / "plain.csv").write_text(PLAIN)
    plain = load_dataset(tmp_path / "plain.csv", target="ill")
    schema = Schema.of(plain)
    rows = [line.replace(".", "!").replace(",", ";").replace("!", ",") for line in PLAIN.splitlines()]
    lines = [f"{'name' if not k else f'P{k}'};{row}" for k, row in enumerate(rows)] + ["P99;<5;m;1"]
    (tmp_path / "ours.csv").write_text("\n".join(lines) + "\n")
    settings = {"target": "ill", "drop": ["name"], "decimal": ",", "missing": "drop", "na_values": ["<5"]}
    init_site(tmp_path / "ward", "ward", "fed.example.org:8000", str(tmp_path / "ours.csv"), settings=settings)
    site = read_site(tmp_path / "ward" / "site.toml")
    found = schema.load(site.data, site.target, site.reading)
    np.testing.assert_array_equal(found.x, plain.x)
    np.testing.assert_array_equal(found.y, plain.y)
    with pytest.raises(FedekdError, match=r"'name' has 41 different|column 'crp' holds text|does not fit"):
        schema.load(site.data, site.target)


def test_only_what_leaves_no_gaps_can_be_said_of_missing_values(tmp_path) -> None:
    init_site(tmp_path / "ward", "ward", "fed.example.org:8000", "rows.csv", settings={"target": "ill"})
    file = tmp_path / "ward" / "site.toml"
    file.write_text('missing = "mean"\n' + file.read_text())
    with pytest.raises(FedekdError, match="missing"):
        read_site(file)
