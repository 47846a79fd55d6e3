"""A patient with several rows: never both trained and tested on, and protected as one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from village import federate, make_server, schema_of, simulate, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from dp_client import BARE, DP, client, sent

from fedekd import cli
from fedekd.dataset import RowNames
from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import Privacy, SiteSettings
from fedekd.flower.site import dp_sgd

STEP = {"rounds": 1, "epochs": 1, "batch_size": 512, "lr": 1.0, "optimizer": "sgd"}


def with_patients(dataset, rows_each=4, rows=200):
    codes = np.arange(rows) // rows_each
    part = replace(dataset, x=dataset.x[:rows].copy(), y=dataset.y[:rows], part=True)
    return replace(part, groups=RowNames("patient", codes, tuple(map(str, range(codes.max() + 1)))))


def moved(one):
    """The sum of what all patients, clipped, move a model by in one step without noise."""
    one.budget.noise = 0.0
    start = {k: w.clone() for k, w in one.message("proxy").items()}
    end = sent(one)
    return torch.cat([((start[k] - end[k]) * one.count).flatten() for k in start])


def as_rows(one):
    """The same client, of whom nobody knows which rows are one patient's."""
    rows = len(one.rows["train"])
    one.grouped, one.units, one.count = False, np.arange(rows), rows
    return one


def test_all_rows_of_a_patient_together_move_the_sum_by_no_more_than_the_clip(tmp_path, digits):
    """One patient's eight rows are far from all others; row by row they move it by more."""
    data = with_patients(digits, rows_each=8)
    schema = schema_of(data)
    probe = client(tmp_path / "probe" / "a", data, dp=BARE, schema=schema, **STEP)
    data.x[probe.rows["train"].numpy()[probe.units == 0]] = 255
    sides = {"with": np.arange(len(probe.units)), "without": np.flatnonzero(probe.units != 0)}

    def distance(name, change):
        pair = [
            moved(change(client(tmp_path / name / side / side, data, dp=BARE, rows=rows, schema=schema, **STEP)))
            for side, rows in sides.items()
        ]
        return float((pair[0] - pair[1]).norm())

    assert 0.5 * DP.clip < distance("patients", lambda one: one) <= DP.clip * (1 + 1e-4)
    assert distance("rows", as_rows) > 3 * DP.clip


def test_patients_are_drawn_with_all_their_rows_as_the_accounting_assumes(tmp_path, digits, monkeypatch):
    sizes, seen = [], []
    take, uniform = dp_sgd.NoisyOptimizer.take, dp_sgd.KeyedRandom.uniform
    monkeypatch.setattr(
        dp_sgd.NoisyOptimizer, "take", lambda self, g, rest: (sizes.append(len(g[0])), take(self, g, rest))
    )
    monkeypatch.setattr(
        dp_sgd.KeyedRandom, "uniform", lambda self, *shape: (seen.append(uniform(self, *shape)), seen[-1])[1]
    )
    one = client(tmp_path / "a", with_patients(digits), batch_size=12)
    assert one.count == 30
    assert len(one.rows["train"]) == 120
    for round in range(2):
        sent(one, round)
    assert one.budget.rate == 12 / 120
    lots = [int((d < one.budget.rate).sum()) for d in seen if d.shape == (one.count,)]
    assert lots == sizes
    assert len(sizes) == one.budget.planned == 2 * 2 * 10
    assert 0.95 * DP.epsilon < one.budget.epsilon <= DP.epsilon


def test_patients_of_one_row_each_are_rows(tmp_path, digits):
    one = client(tmp_path / "a" / "a", with_patients(digits, rows_each=1), dp=BARE, **STEP)
    other = as_rows(client(tmp_path / "b" / "b", with_patients(digits, rows_each=1), dp=BARE, **STEP))
    assert one.grouped
    assert torch.allclose(moved(one), moved(other), atol=1e-5)


def test_a_patients_gradient_is_the_mean_of_its_rows(tmp_path, digits):
    one = client(tmp_path / "a", with_patients(digits), dp=BARE, **STEP)
    here = np.concatenate([np.flatnonzero(one.units == k) for k in (2, 5)])
    gradients = torch.randn(len(here), 3)
    (found,) = one._by_unit([gradients], torch.from_numpy(here))
    assert torch.allclose(found, torch.stack([gradients[:4].mean(0), gradients[4:].mean(0)]), atol=1e-6)


def test_noise_is_not_used_again_where_the_patients_are_others(tmp_path, digits):
    one = client(tmp_path / "a", with_patients(digits))
    (step,) = one.noisy[:1]
    before = one.noise_key(step, 0)
    one.units = np.roll(one.units, 1)
    assert one.noise_key(step, 0) != before


def test_delta_is_judged_by_the_number_of_patients(tmp_path, digits):
    data = with_patients(digits, rows_each=4)
    dp = Privacy(epsilon=8.0, delta=1 / 60)
    client(tmp_path / "patients", data, dp=dp)
    with pytest.raises(FedekdError, match="protects no one of 120 rows"):
        client(tmp_path / "rows", replace(data, groups=None), dp=dp)
    with pytest.raises(FedekdError, match="protects no one of 30 patients"):
        client(tmp_path / "few", data, dp=Privacy(epsilon=8.0, delta=1 / 20))


def test_a_federation_whose_sites_know_their_patients(tmp_path, digits):
    """The split keeps patients whole, the column is no input, and the report says what is protected."""
    sites = write_sites(tmp_path, digits, 2, dp=Privacy(epsilon=20.0, delta=1e-3), group="patient", alone="plain")
    for site in sites:
        rows = dict(np.load(site.data))
        np.savez(site.data, x=rows["x"][:60], y=rows["y"][:60], patient=np.arange(60) // 3)
    schema = schema_of(digits)
    _, report = federate(make_server(tmp_path, rounds=1, batch_size=200), schema, sites)
    assert report["complete"]
    assert {one["guarantee"] for one in report["privacy"].values()} == {
        "the sent models, end to end, for all rows of a patient together"
    }
    for site in sites:
        (path,) = site.state.glob("*/report.json")
        told = json.loads(path.read_text())
        assert told["n_train"] + told["n_val"] + told["n_test"] == 60
        assert all(told[f"n_{split}"] % 3 == 0 for split in ("train", "val", "test")), "patients stay whole"
        assert told["n_test"] == 12
        assert "low" not in told, "12 rows, but of 4 patients: too few for an interval of Δ"


def test_sites_that_weigh_opinions_part_no_patient(tmp_path, digits, monkeypatch):
    """The weights are cross-fitted over patients, as in the simulation of the same federation."""
    found, remember = {}, Client.remember

    def noted(self, step, round):
        remember(self, step, round)
        if step.split == "val":
            found[self.name] = self._whole("val", (), round).groups, self.memory["weights"]

    monkeypatch.setattr(Client, "remember", noted)
    sites = write_sites(tmp_path, digits, 2, group="patient")
    for site in sites:
        rows = dict(np.load(site.data))
        np.savez(site.data, x=rows["x"][:100], y=rows["y"][:100], patient=np.arange(100) * 7 % 25)
    server, schema = make_server(tmp_path, method="second-opinion"), schema_of(digits)
    federate(server, schema, sites)
    at_sites, found = found, {}
    simulate(server, schema, sites).measure()
    assert at_sites.keys() == found.keys() == {site.name for site in sites}
    for name, (groups, weights) in at_sites.items():
        assert (torch.bincount(groups) == 4).all()
        assert torch.equal(groups, found[name][0])
        torch.testing.assert_close(weights, found[name][1], atol=1e-4, rtol=1e-4)


def test_a_loss_with_privacy_is_told_the_rows_patient(tmp_path, digits):
    one = client(tmp_path / "a", with_patients(digits), dp=BARE)
    of_one = one._loss_of_one("proxy", lambda batch: batch.groups.float().mean())
    weights, (x, y, uniform, _) = one.weights("proxy"), one._blank()
    told = [int(of_one(weights, x, y, uniform, place, {})) for place in torch.arange(40)]
    assert told == one.units[:40].tolist() != list(range(40))


def test_the_schema_does_not_hold_the_patients_column(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"p{k // 2},{rng.normal():.3f},{k % 3 == 0:d}" for k in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["patient,age,ill", *lines]) + "\n")
    folder = tmp_path / "north"
    words = ["--name", "north", "--server", "h:8000", "--data", str(tmp_path / "rows.csv"), "--target", "ill"]
    cli.main(["site", "init", str(folder), *words, "--group", "patient"])
    cli.main(["site", "schema", str(folder / "site.toml"), "--out", str(tmp_path / "schema.json")])
    schema = Schema.read(tmp_path / "schema.json")
    assert schema.columns == ("age",)
    data = schema.load(tmp_path / "rows.csv", "ill", group="patient")
    assert len(data.groups.names) == 30
    assert "p1" not in json.dumps((tmp_path / "schema.json").read_text())
    assert SiteSettings.__dataclass_fields__["group"].default is None
