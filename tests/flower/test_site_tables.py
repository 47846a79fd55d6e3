"""A site's table as its hospital writes it: site.toml says how it is read, and it fits the others' schema."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.data import load_dataset
from fedekd.errors import FedekdError
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import SiteSettings, read_site
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
    with pytest.raises(FedekdError, match="does not fit the federation's schema"):
        schema.load(site.data, site.target)


def test_a_flag_would_be_a_column_more_than_others_have(tmp_path) -> None:
    with pytest.raises(FedekdError, match="unknown missing 'flag'; known: drop, mean"):
        ward(tmp_path, missing="flag")


def test_means_of_rows_are_not_for_a_site_with_noise(tmp_path) -> None:
    with pytest.raises(FedekdError, match='missing = "mean" would carry rows past the noise'):
        ward(tmp_path, missing="mean", dp={"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "teacher": "labels"})


def test_what_is_wrong_with_a_table_is_told_in_the_words_of_site_toml(tmp_path) -> None:
    schema = table_schema(tmp_path)
    (tmp_path / "ours.csv").write_text("crp,sex,age,ill\n,m,1,yes\n2,f,2,no\n")
    site = ward(tmp_path)
    with pytest.raises(FedekdError, match=r'or set missing = "mean" or "drop" in site\.toml$'):
        schema.load(site.data, site.target, site.reading)
    with pytest.raises(FedekdError, match="Give `target`, one of: crp, sex, age, ill"):
        schema.load(site.data, None, site.reading)


def test_a_site_fills_missing_values_by_its_own_training_rows_and_so_does_its_model(tmp_path) -> None:
    """Neither validation nor test rows nor other sites have a part in the mean; an empty column is possible too."""
    schema = table_schema(tmp_path)
    rows = [
        f"{'' if k % 5 == 0 else k / 8},{'' if k % 7 == 0 else 'mf'[k % 2]},,{'no' if k // 2 % 2 else 'yes'}"
        for k in range(40)
    ]
    (tmp_path / "ours.csv").write_text("crp,sex,age,ill\n" + "\n".join(rows) + "\n")
    site = ward(tmp_path, missing="mean")
    dataset = schema.load(site.data, site.target, site.reading)
    federation = of_site(dataset, schema, "ward", seed=0, number=0)
    train = federation.clients[0].train
    known = dataset.x[train, 0]
    mean = known[~np.isnan(known)].mean(dtype=np.float64)
    filled = federation.dataset.x[:, 0]
    assert np.isnan(dataset.x[::5, 0]).all()
    np.testing.assert_allclose(filled[::5], mean, rtol=1e-6)
    np.testing.assert_array_equal(filled[1::5], dataset.x[1::5, 0])
    assert (federation.dataset.x[:, 1] == 0).all(), "nothing is known of an empty column"
    assert federation.dataset.x[::7, 2:].sum() == 0, "a missing text is none of the categories"
    assert federation.fill is not None
    assert federation.fill[0] == pytest.approx(mean), "what `fedekd predict` fills with"


def test_an_empty_column_of_text_is_no_reason_to_stay_out(tmp_path) -> None:
    schema = table_schema(tmp_path)
    rows = [f"{k / 8},,{k},{'no' if k // 2 % 2 else 'yes'}\n" for k in range(40)]
    (tmp_path / "ours.csv").write_text("crp,sex,age,ill\n" + "".join(rows))
    site = ward(tmp_path, missing="mean")
    found = schema.load(site.data, site.target, site.reading)
    assert (found.x[:, 2:] == 0).all()


def table_schema(folder) -> Schema:
    rows = [f"{k / 8},{'mf'[k % 2]},{k},{'no' if k // 2 % 2 else 'yes'}" for k in range(40)]
    (folder / "plain.csv").write_text("crp,sex,age,ill\n" + "\n".join(rows) + "\n")
    return Schema.of(load_dataset(folder / "plain.csv", target="ill"))


def ward(folder, **settings) -> SiteSettings:
    init_site(
        folder / "ward",
        "ward",
        "fed.example.org:8000",
        str(folder / "ours.csv"),
        settings={"target": "ill", **settings},
    )
    return read_site(folder / "ward" / "site.toml")
