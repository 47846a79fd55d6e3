"""Folders that an earlier version wrote still load, report, export, predict and resume.

``recorded/v0.1`` is of version 0.1, before any module moved: ``whole`` by the command below with two seeds of three
methods, ``interrupted`` by the same command stopped while FedProx was in its second round of three.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedekd
from fedekd.cli import main
from fedekd.engines.serial import Serial

RECORDED = Path(__file__).parent / "recorded" / "v0.1"
SETTINGS = (  # noqa: SIM905
    "--dataset diabetes --clients 2 --partition iid --rounds 3 --epochs 1 --batch-size 64 --seeds 0-1 "
    "--methods fedekd,knnper,fedprox --private recorded_models:private --proxy recorded_models:proxy"
).split()


@pytest.fixture
def recorded(tmp_path):
    return Path(shutil.copytree(RECORDED, tmp_path / "recorded"))


@pytest.fixture
def rounds(monkeypatch):
    """The rounds that are trained from now on, by method."""
    trained, plain = [], Serial.round

    def counted(self):
        trained.append(type(self.job.method).__name__)
        return plain(self)

    monkeypatch.setattr(Serial, "round", counted)
    return trained


def test_it_loads(recorded):
    result = fedekd.load(recorded / "whole")
    assert [r["label"] for r in result.records] == ["local", "fedekd", "knnper", "fedprox"] * 2
    assert len(result.clients) == 16
    assert len(result.summary) == 4


def test_a_finished_folder_trains_nothing_again(recorded, rounds, capsys):
    before = (recorded / "whole" / "results.jsonl").read_bytes()
    assert main(["run", *SETTINGS, "--out", str(recorded / "whole")]) == 0
    assert rounds == []
    assert (recorded / "whole" / "results.jsonl").read_bytes() == before


def test_an_interrupted_folder_goes_on_in_the_middle_of_a_run(recorded, rounds, capsys):
    assert main(["run", *SETTINGS, "--out", str(recorded / "interrupted")]) == 0
    assert rounds[:2] == ["FedProx"] * 2, "what is left of seed 0's run after its checkpoint"
    assert sorted(rounds[2:]) == sorted(["Local", "FedeKD", "KNNPer", "FedProx"] * 3)
    values = [
        {record["key"]: [c["value"] for c in record["clients"]] for record in fedekd.load(folder).records}
        for folder in (recorded / "interrupted", recorded / "whole")
    ]
    assert values[0].keys() == values[1].keys()
    for key, known in values[1].items():
        assert values[0][key] == pytest.approx(known, rel=1e-4)  # a CPU may round otherwise than the one of then


def test_it_is_reported(recorded, tmp_path, capsys):
    assert main(["report", str(recorded / "whole")]) == 0
    assert main(["table", str(recorded / "whole")]) == 0
    assert "fedekd" in (recorded / "whole" / "report.html").read_text()


def test_its_models_are_exported_and_predict(recorded, tmp_path, capsys):
    import numpy as np
    from sklearn.datasets import load_diabetes

    np.savez(tmp_path / "new.npz", x=load_diabetes().data[:5].astype("float32"))
    for method, more in (("fedekd", ()), ("knnper", ("--with-rows",))):
        model, answers = str(tmp_path / f"{method}.safetensors"), str(tmp_path / f"{method}.csv")
        given = ["export", str(recorded / "whole"), "--client", "0", "--method", method, "--to", model, *more]
        assert main(given) == 0
        assert main(["predict", model, str(tmp_path / "new.npz"), "--out", answers, *SETTINGS[-4:]]) == 0
        assert len((tmp_path / f"{method}.csv").read_text().splitlines()) == 6


def test_what_was_recorded_is_of_that_version():
    lines = (RECORDED / "whole" / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["versions"]["fedekd"] for line in lines} == {"0.1.0"}
