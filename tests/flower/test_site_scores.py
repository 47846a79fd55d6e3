"""A site's report has every metric of the two models that its verdict compares, and keeps them at home."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import federate, make_server, schema_of, write_sites

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
    shared = json.dumps(json.loads((server.state / "report.json").read_text()))
    assert not any(score.name in shared for score in of_task(task) if score.name != own["metric"])
