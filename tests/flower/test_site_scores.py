"""A site's report has every metric of the two models that its verdict compares, and keeps them at home."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import federate, make_server, schema_of, write_sites

from fedekd import scores
from fedekd.report.federation import own_numbers
from fedekd.runs.federation_report import site_report
from fedekd.scores import of_task


@pytest.mark.parametrize("data", ["digits", "diabetes"])
def test_they_are_of_the_models_of_the_verdict(tmp_path, request, data):
    dataset = request.getfixturevalue(data)
    sites = write_sites(tmp_path, dataset, alone="menu")
    server = make_server(tmp_path, rounds=2, epochs=1, lr=0.01)
    federate(server, schema_of(dataset), sites)
    for site in sites:
        (folder,) = (path.parent for path in site.state.glob("*/report.json"))
        own = site_report(folder)
        task = {"accuracy": "classification", "rmse": "regression"}[own["metric"]]
        for who in ("alone", "joined"):
            assert list(own["scores"][who]) == [score.name for score in of_task(task)]
            assert own["scores"][who][own["metric"]] == pytest.approx(own[who]["value"], rel=1e-5)
        assert own["scores"]["alone"] != own["scores"]["joined"]
        other = {"accuracy": "AUROC", "rmse": "MAE"}[own["metric"]]
        assert other in own_numbers(own)
        assert "not judged" in own_numbers(own)
        left = [json.loads(line).get("left", {}) for line in (site.state / "audit.jsonl").read_text().splitlines()]
        (numbers,) = (one["numbers"] for one in left if "delta" in one.get("numbers", {}))
        assert numbers["metric"] == own["metric"]
        others = {score.name for score in of_task(task)} | {"scores"}
        assert not others & {*numbers, *map(str, numbers.values())} - {own["metric"]}


def test_what_no_verdict_is_about_costs_a_site_nothing(tmp_path, digits, monkeypatch, caplog):
    monkeypatch.setitem(scores.SCORES, "auroc", scores.Score("auroc", lambda rows: 1 / 0))
    sites = write_sites(tmp_path, digits, alone="plain")
    federate(make_server(tmp_path, rounds=1, epochs=1), schema_of(digits), sites)
    (folder,) = (path.parent for path in sites[0].state.glob("*/report.json"))
    own = site_report(folder)
    assert "scores" not in own
    assert "verdict" in own
    assert "other metrics than the accuracy could not be taken: division by zero" in caplog.text
    assert "not judged" not in own_numbers(own)
