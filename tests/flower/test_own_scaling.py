"""Each site scales by its own rows, tells nobody, and its model is handed over with that scaling."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from test_site import code, payload
from village import federate, make_server, write_sites

from fedekd.cli import main
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import Privacy
from fedekd.flower.setup.init import init_site
from fedekd.flower.site.handlers import answer


def bare(dataset):
    """As an .npz file has it: no names of columns."""
    return replace(dataset, columns=())


def test_a_handed_over_model_has_the_sites_own_scaling(tmp_path, diabetes):
    schema, sites = Schema.of(bare(diabetes)), write_sites(tmp_path, bare(diabetes))
    _, report = federate(make_server(tmp_path, private=None, proxy=None), schema, sites)
    assert report["complete"]
    means = set()
    for number, site in enumerate(sites):
        (folder,) = (file.parent for file in site.state.glob("*/agreement.json"))
        facts = export(folder, site.name, tmp_path / f"{site.name}.safetensors")
        rows = schema.load(site.data)
        federation = of_site(rows, schema, site.name, 0, number)
        assert facts.scale[0] == pytest.approx(federation.gain)
        means.add(facts.target[0])
        said = predict(tmp_path / f"{site.name}.safetensors", site.data).values
        test = federation.clients[0].test
        rmse = np.sqrt(np.mean((said[test] - rows.y[test]) ** 2))
        assert rmse == pytest.approx(report["sites"][number]["value"], rel=1e-4)
        card = (tmp_path / f"{site.name}.card.md").read_text()
        assert "standardised by this client's own training rows" in card
    assert len(means) == len(sites), "sites have different rows, so each its own mean"


def test_own_scaling_would_carry_rows_past_the_noise(tmp_path, diabetes, caplog):
    (site,) = write_sites(tmp_path, bare(diabetes), dp=Privacy(epsilon=8.0, delta=1e-4))[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path), Schema.of(bare(diabetes))))) == StatusCode.REFUSED
    assert "[dp] needs a schema that gives the scaling" in caplog.text


TABLE = "age,ward,outcome\n" + "".join(f"{20 + 7 * k % 31},{'abc'[k % 3]},{k % 2}\n" for k in range(30))


def test_the_command_says_what_the_schema_tells(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(TABLE)
    settings = {"target": "outcome"}
    init_site(tmp_path / "north", "north", "localhost:1", str(tmp_path / "rows.csv"), settings=settings)
    command = ["site", "schema", str(tmp_path / "north" / "site.toml"), "--out", str(tmp_path / "schema.json")]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "it shows the labels: 0, 1\nit shows the categories of column 'ward': a, b, c\n" in told
    assert "no statistics" in told
    written = json.loads((tmp_path / "schema.json").read_text())
    assert written["scaling"] == {"gain": "own", "shift": "own", "mean": 0.0, "std": 1.0}
    assert main([*command, "--with-scaling"]) == 0
    assert "it shows everyone the means and deviations of this site's 30 rows" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "schema.json").read_text())["scaling"]["gain"]) == 4


def test_public_rows_give_the_scaling_of_a_schema_that_all_sites_have_extended(tmp_path, capsys):
    """Their own categories are few; without this, sites with [dp] whose tables hold texts could not agree on one."""
    (tmp_path / "rows.csv").write_text(TABLE)
    (tmp_path / "public.csv").write_text(TABLE.replace(",a,", ",b,"))
    for name, rows in (("north", "rows.csv"), ("public", "public.csv")):
        init_site(tmp_path / name, name, "localhost:1", str(tmp_path / rows), settings={"target": "outcome"})
    file = str(tmp_path / "schema.json")
    assert main(["site", "schema", str(tmp_path / "north" / "site.toml"), "--out", file]) == 0
    command = ["site", "schema", str(tmp_path / "public" / "site.toml"), "--extend", file, "--with-scaling"]
    assert main([*command, "--out", file]) == 0
    assert "it shows everyone the means and deviations of this site's 30 rows" in capsys.readouterr().out
    made = Schema.read(file)
    assert made.columns == ("age", "ward=a", "ward=b", "ward=c")
    ages = [int(line.split(",")[0]) for line in TABLE.splitlines()[1:]]
    assert made.scaling.gain[:2] == pytest.approx([1 / np.std(ages), 1])
    assert made.scaling.shift[:2] == pytest.approx([-np.mean(ages) / np.std(ages), 0])
    assert made.load(tmp_path / "rows.csv", "outcome").x.shape == (30, 4)
