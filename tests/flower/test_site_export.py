"""A site gets its models out of its state folder: the one that the federation trained, and the one trained alone."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from village import federate, local_of, make_server, schema_of, state_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.runs.verdict_text import STATES


@pytest.fixture(scope="module")
def site(tmp_path_factory, digits):
    """A site after a federation, in which it kept its own folder."""
    home = tmp_path_factory.mktemp("village")
    sites = write_sites(home, digits)
    federate(make_server(home, rounds=1, epochs=1), schema_of(digits), sites)
    return sites[0]


def folder_of(site) -> Path:
    (report,) = site.state.glob("*/report.json")
    return report.parent


def export(site, to: Path, *more: str) -> int:
    return main(["export", str(folder_of(site)), "--client", site.name, "--to", str(to), *more])


@pytest.mark.parametrize(("more", "name"), [([], "fedekd"), (["--method", "local"], "local")])
def test_either_model_can_be_used(site, tmp_path, capsys, more, name):
    to, report = tmp_path / "m.safetensors", json.loads((folder_of(site) / "report.json").read_text())
    assert export(site, to, *more) == 0
    assert f"client {site.name}, {name}" in capsys.readouterr().out
    kept = local_of(site) if name == "local" else state_of(site)["client"]["models"]["private"]
    given = load_file(to)
    assert kept.keys() == given.keys()
    assert all(torch.equal(kept[key], given[key]) for key in kept)

    words = ["predict", str(to), site.data, "--private", "tiny:tiny_private", "--out", str(tmp_path / "p.csv")]
    assert main(words) == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + len(np.load(site.data)["x"])

    card = (tmp_path / "m.card.md").read_text()
    value = report["local" if name == "local" else "value"]
    assert f"# Private model of client {site.name}" in card
    assert f"| trained alone (Local) | {100 * report['local']:.1f} % |" in card
    assert f"| {name} | {100 * value:.1f} % |" in card
    assert ("This is the model the client trained alone." in card) == (name == "local")
    told = f"{STATES[report['verdict']['state']]}: {report['verdict']['reason']}. Should this client join?"
    assert (told in card) == (name != "local")
    assert ("| gain over the best alone (" in card) == (name != "local")


def test_a_small_error_is_not_written_as_zero(tmp_path, diabetes):
    """A site has no results.jsonl that would tell how many digits there are."""
    sites = write_sites(tmp_path, replace(diabetes, y=diabetes.y / 1000), task="regression")
    federate(make_server(tmp_path, rounds=1, epochs=1), schema_of(replace(diabetes, y=diabetes.y / 1000)), sites)
    assert export(sites[0], tmp_path / "m.safetensors", "--method", "local") == 0
    report = json.loads((folder_of(sites[0]) / "report.json").read_text())
    assert f"| trained alone (Local) | {report['local']:.5f} |" in (tmp_path / "m.card.md").read_text()


def test_a_folder_above_is_answered_with_the_newest_below(site, tmp_path, capsys):
    home = tmp_path / "north"
    for age, name in ((9, "0" * 16), (5, "f" * 16), (7, "a" * 16)):
        shutil.copytree(folder_of(site), home / "state" / name)
        for model in (home / "state" / name).rglob("*.safetensors"):
            os.utime(model, (1e9 - age, 1e9 - age))
    for given in (home, home / "state"):
        assert main(["export", str(given), "--client", site.name, "--to", str(tmp_path / "m.safetensors")]) == 2
        error = capsys.readouterr().err
        assert f"no models are kept in {given} itself" in error
        assert error.endswith(f": {home / 'state' / ('f' * 16)}\n")
        assert error.count("\n") == 1


@pytest.mark.parametrize("file", ["agreement.json", "site.toml"])
def test_before_its_last_visit_a_site_has_no_model(tmp_path, file, capsys):
    (tmp_path / file).touch()
    assert main(["export", str(tmp_path), "--client", "north", "--to", str(tmp_path / "m.safetensors")]) == 2
    assert capsys.readouterr().err.endswith("yet: a real site has them after its last visit\n")


@pytest.mark.parametrize("kept", [0o600, 0o644])
def test_nobody_reads_an_export_who_could_not_read_the_model(site, tmp_path, kept):
    """`fedekd site run` keeps its models for their owner; a simulation's are as its user's other files."""
    shutil.copytree(folder_of(site), tmp_path / "kept")
    for model in (tmp_path / "kept").rglob("*.safetensors"):
        model.chmod(kept)
    to, before = tmp_path / "m.safetensors", os.umask(0o022)
    try:
        assert main(["export", str(tmp_path / "kept"), "--client", site.name, "--to", str(to)]) == 0
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (to, tmp_path / "m.card.md")} == {kept}


def test_what_is_exported_is_the_model_that_answers(tmp_path, digits):
    """A method that trains a head before it answers: the score, the report and the exported model are of that one."""
    from test_equality import place

    from fedekd.runs import saved_models

    server, sites = place(tmp_path, digits, "toys:Personal", rounds=1, epochs=1)
    federate(server, schema_of(digits), sites)
    folder = folder_of(sites[0])
    (kept,) = (one for one in saved_models.find_models(folder) if one.about["method"] != "local")
    given, travelling = load_file(kept.path), state_of(sites[0])["client"]["models"]["private"]
    changed = {name for name, w in given.items() if not torch.equal(w, travelling[name])}
    assert changed == {"head.weight", "head.bias"}, "what travels is left alone"
    assert kept.about["value"] == json.loads((folder / "report.json").read_text())["value"]
    words = [
        "predict",
        str(kept.path),
        sites[0].data,
        "--private",
        "tiny:tiny_private",
        "--out",
        str(tmp_path / "p.csv"),
    ]
    assert main(words) == 0
