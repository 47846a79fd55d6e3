"""`chosen_by` in site.toml: a site's report, its card and the server's report say how the best alone was chosen."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import federate, make_server, schema_of, write_sites

from fedekd.cli import main
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.settings import SiteSettings, read_site
from fedekd.flower.site import report as of_site
from fedekd.flower.toml_files import toml_text
from fedekd.report.federation import own_numbers, print_report
from fedekd.report.page import federation_text
from fedekd.runs.choosing import best_on_validation
from fedekd.runs.federation_report import read_report, site_report

BY_LOSS = "by loss, unless plain Local's is within one standard error of the lowest"
CHOICE = {"metric": "local-smooth", "loss": "fedekd@alone"}


@pytest.fixture
def made_up(monkeypatch):
    """What the validation rows say, in place of the few that there are."""

    def choose(options, n_val, higher_is_better, by):
        assert best_on_validation(options, 0, higher_is_better, by).label == "local"
        return next((one for one in options if one.label == CHOICE[by]), options[0])

    monkeypatch.setattr(of_site, "best_on_validation", choose)


def test_every_report_says_what_each_site_chose_by(tmp_path, digits, made_up, capsys):
    usual = write_sites(tmp_path / "usual", digits, 3, alone="menu")
    by_loss = write_sites(tmp_path / "loss", digits, 3, alone="menu", chosen_by="loss")
    without_menu = write_sites(tmp_path / "plain", digits, 3, alone="plain", chosen_by="loss")
    sites = [usual[0], by_loss[1], without_menu[2]]
    server = make_server(tmp_path, rounds=1, epochs=1)
    federate(server, schema_of(digits), sites)
    for site, by in zip(sites[:2], ("metric", "loss"), strict=True):
        (folder,) = (path.parent for path in site.state.glob("*/report.json"))
        own = site_report(folder)
        assert (own["chosen_by"], own["alone"]["label"]) == (by, CHOICE[by])
        model = tmp_path / f"{site.name}.safetensors"
        for method, name in (("alone", CHOICE[by]), ("fedekd", "fedekd")):
            given = ["export", str(folder), "--client", site.name, "--to", str(model), "--method", method]
            assert main(given) == 0
            assert f"{site.name}, {name}" in capsys.readouterr().out
            card = model.with_suffix(".card.md").read_text()
            for text in (card, own_numbers(own)):
                assert "Alone: the best of local, local-smooth-tenth" in text
                assert f"chosen for this site on its validation rows{f' {BY_LOSS}' if by == 'loss' else ''};" in text
        assert main([*given, "--chosen-by", "loss"]) == 2, "it was chosen when the federation ended"
        assert "by chosen_by in its site.toml" in capsys.readouterr().err
    report, out = read_report(server.state), io.StringIO()
    assert [one.get("chosen_by") for one in report.sites] == [None, "loss", None]
    print_report(Console(file=out, width=300), report)
    said = f"{by_loss[1].name} chose the best alone on its validation rows {BY_LOSS}."
    assert said in out.getvalue()
    assert said in federation_text(server.state).replace("&#39;", "'").replace("&#x27;", "'")


def test_a_site_that_keeps_its_verdict_keeps_that_too(tmp_path, digits, made_up):
    sites = write_sites(tmp_path, digits, 2, alone="menu", chosen_by="loss", share=("n", "metric", "delta"))
    server = make_server(tmp_path, rounds=1, epochs=1)
    federate(server, schema_of(digits), sites)
    assert "chosen_by" not in (server.state / "report.json").read_text()


@pytest.mark.parametrize("value", ["lose", 3, True, "loss" * 1000])
def test_a_server_takes_no_other_word(value):
    reply = Reply.parse(Payload({"code": 0, "name": "birch", "chosen_by": value}))
    assert reply.faults[0].startswith("chosen_by is ")
    assert "chosen_by" not in reply.numbers


def test_it_is_a_key_of_site_toml(tmp_path):
    given = {name: name for name in ("name", "ca", "key", "state", "data")} | {"server": "localhost:8000"}
    (tmp_path / "site.toml").write_text(text := toml_text(SiteSettings, "a site", given))
    assert 'chosen_by = "metric"' in text
    assert read_site(tmp_path / "site.toml").chosen_by == "metric"
    (tmp_path / "site.toml").write_text(text.replace('chosen_by = "metric"', 'chosen_by = "lose"'))
    with pytest.raises(Exception, match="unknown chosen_by 'lose'"):
        read_site(tmp_path / "site.toml")


def test_the_command_report_cannot_choose_for_a_real_site(tmp_path, capsys):
    given = {name: name for name in ("name", "ca", "key", "data")} | {"server": "localhost:8000", "state": "state"}
    (tmp_path / "site.toml").write_text(toml_text(SiteSettings, "a site", given))
    (tmp_path / "state" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "state" / "0123456789abcdef" / "report.json").write_text(json.dumps({}))
    assert main(["report", str(tmp_path), "--chosen-by", "loss"]) == 2
    assert "by chosen_by in its site.toml" in capsys.readouterr().err
