"""A site answers for one schema and one set of terms, and says no more than "refused" to any other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_site import code, payload
from village import make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.data import load_dataset
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import SiteSettings, read_site
from fedekd.flower.setup.init import init_site
from fedekd.flower.site import pins
from fedekd.flower.site.handlers import answer

NOTHING = {"code": int(StatusCode.REFUSED)}


@pytest.fixture
def site(tmp_path, digits) -> SiteSettings:
    return write_sites(tmp_path, digits)[0]


@pytest.fixture
def ward(tmp_path) -> SiteSettings:
    """Forty patients whose ages nobody else shall know."""
    ages = np.arange(20, 60)
    lines = [f"{age},{age % 7},{'yes' if age % 2 else 'no'}" for age in ages]
    (tmp_path / "patients.csv").write_text("\n".join(["age,pulse,ill", *lines]) + "\n")
    init_site(
        tmp_path / "ward", "ward", "fed.example.org:8000", str(tmp_path / "patients.csv"), settings={"target": "ill"}
    )
    return read_site(tmp_path / "ward" / "site.toml")


def as_categories(site: SiteSettings, ages) -> Schema:
    """A schema that has one column for each of these ages."""
    own = Schema.of(load_dataset(site.data, target=site.target))
    columns = (*(f"age={age}" for age in ages), "pulse")
    return replace(own, columns=columns, shape=(len(columns),))


def test_a_schema_is_no_oracle(tmp_path, ward, caplog):
    """With one schema after another a server would learn which ages occur: none of them is tried on the rows."""
    server = make_server(tmp_path, private=None, proxy=None)
    every = range(20, 60)
    told = [answer(ward, "join", payload(server, as_categories(ward, [a for a in every if a != left]))).words
            for left in range(20, 80)]  # fmt: skip
    assert told == [{**NOTHING, "name": "ward"}] * 60
    assert "the schema reads column 'age' as categories, and here it holds numbers" in caplog.text
    assert caplog.text.count("the server's offer differs from what this site agreed to") == pins.MOST - 1
    assert caplog.text.count("so no more are considered until it is over") == 1
    pins.Pins(ward.state).accept_schema(as_categories(ward, every))
    assert code(answer(ward, "join", payload(server, as_categories(ward, every)))) == StatusCode.DONE, (
        "if that is meant"
    )


def test_another_offer_needs_the_administrators_word(tmp_path, digits, site, monkeypatch, capsys):
    schema, file = schema_of(digits), tmp_path / "site.toml"
    monkeypatch.setattr("fedekd.flower.settings.read_site", lambda _: site)
    server = make_server(tmp_path)
    assert code(answer(site, "join", payload(server, schema))) == StatusCode.DONE
    assert code(answer(site, "join", payload(server, schema, federation="1" * 16))) == StatusCode.DONE
    longer = make_server(tmp_path, rounds=9, method="fedavg")
    asking = payload(longer, schema, federation="2" * 16)
    Path(site.data).rename(site.data + ".away")
    assert answer(site, "join", asking).words == {**NOTHING, "name": "alder"}, "the rows are not looked at"
    Path(site.data + ".away").rename(site.data)

    assert main(["site", "accept", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "rounds was 2, is 9" in shown
    assert "method was 'fedekd', is 'fedavg'" in shown
    assert "what leaves: private" in shown
    offer = re.search(r"site\.toml ([0-9a-f]{32})$", shown)[1]
    assert main(["site", "accept", str(file), "0" * 16]) == 2
    assert f"the last offer is {offer}, not" in capsys.readouterr().err
    assert code(answer(site, "join", asking)) == StatusCode.REFUSED
    assert main(["site", "accept", str(file), offer]) == 0
    assert code(answer(site, "join", asking)) == StatusCode.DONE
    assert code(answer(site, "join", payload(server, schema, federation="3" * 16))) == StatusCode.REFUSED
    assert main(["site", "accept", str(file)]) == 0


def test_a_schema_can_be_accepted_before_the_first_offer(tmp_path, digits, site, monkeypatch, capsys):
    monkeypatch.setattr("fedekd.flower.settings.read_site", lambda _: site)
    schema = schema_of(digits)
    schema.write(tmp_path / "schema.json")
    assert main(["site", "accept", "site.toml", "--schema", str(tmp_path / "schema.json")]) == 0
    other = replace(schema, labels=schema.labels[::-1])
    assert code(answer(site, "join", payload(make_server(tmp_path), other))) == StatusCode.REFUSED
    assert code(answer(site, "join", payload(make_server(tmp_path), schema))) == StatusCode.DONE
    assert code(answer(site, "join", payload(make_server(tmp_path, epochs=7), schema))) == StatusCode.REFUSED
    assert "no offer" not in capsys.readouterr().out


def spoilt_rows(site):
    Path(site.data).write_bytes(b"PK no archive")
    return site


@pytest.mark.parametrize(
    "change",
    [
        spoilt_rows,
        lambda site: replace(site, private="tiny:nothing"),
        lambda site: replace(site, leave=()),
        lambda site: replace(site, local="nowhere.pt"),
    ],
)
def test_a_refusal_says_no_more(tmp_path, digits, site, change, caplog):
    reply = answer(change(site), "join", payload(make_server(tmp_path), schema_of(digits)))
    assert reply.words == {**NOTHING, "name": "alder"}
    assert "(refusal 1 of at most 10 in a day)" in caplog.text


def test_refusals_are_limited_for_a_day(tmp_path, digits, site, monkeypatch, caplog):
    schema, now = schema_of(digits), [1e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    good, bad = payload(make_server(tmp_path), schema), payload(make_server(tmp_path, epochs=0), schema)
    for _ in range(pins.MOST):
        now[0] += 60
        assert code(answer(site, "join", bad)) == StatusCode.REFUSED
    for _ in range(3):
        assert code(answer(site, "join", good)) == StatusCode.REFUSED
    assert caplog.text.count("`fedekd site accept SITE.toml` ends this") == 1
    now[0] += pins.DAY - 60
    assert code(answer(site, "join", good)) == StatusCode.DONE
