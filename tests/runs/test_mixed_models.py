"""A federation of several architectures: its records, its report and the models that it leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console

from fedekd.report.clients import print_clients
from fedekd.report.page import write_page
from fedekd.runs.inference import load_model
from fedekd.runs.plan import plan
from fedekd.runs.runner import run
from fedekd.runs.saved_models import find_models
from fedekd.settings import make_settings
from fedekd.units import Unit
from lines import Notes

GIVEN = {"dataset": "digits", "clients": 3, "alpha": 0.5, "rounds": 2, "epochs": 1, "lr": 3e-3, "batch_size": 20}
MODELS = ["linear", "resnet", "mlp-large"]


@pytest.fixture(scope="module")
def mixed(digits, tmp_path_factory):
    """Records and folder by engine."""
    found = {}
    for engine in ("serial", "stacked"):
        folder, notes = tmp_path_factory.mktemp(engine), Notes()
        asked = {**GIVEN, "methods": ["fml"], "private": MODELS, "proxy": "mlp-small", "engine": engine}
        settings = make_settings({**asked, "out": str(folder)})
        assert settings.private == "linear,resnet,mlp-large"
        found[engine] = run(settings, notes, digits).records, folder, plan(settings, digits)[0].job.federation
        assert not [line for line in notes.lines if "serial engine" in line]
    return found


def test_records_say_which_model_a_client_has(mixed):
    serial, stacked = (records for records, *_ in mixed.values())
    for ours, theirs in zip(serial, stacked, strict=True):
        assert [client["model"] for client in ours["clients"]] == MODELS
        assert ours["key"] == theirs["key"], "the engine decides nothing"
        assert ours["bytes_up"] == theirs["bytes_up"]
        for a, b in zip(ours["clients"], theirs["clients"], strict=True):
            assert a["value"] == pytest.approx(b["value"], abs=1e-6)
            assert a["val_loss"] == pytest.approx(b["val_loss"], abs=1e-3)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_kept_models_answer_as_the_record_says(mixed, digits, engine):
    records, folder, federation = mixed[engine]
    by_key = {record["key"]: record for record in records}
    kept = find_models(folder)
    assert len(kept) == 2 * len(MODELS)
    for metadata in kept:
        own = next(c for c in by_key[metadata.about["key"]]["clients"] if c["id"] == metadata.client)
        with torch.no_grad():  # no --private is needed: these models have names
            test = federation.clients[federation.names.index(metadata.client)].test
            answers = load_model(metadata)(torch.from_numpy(digits.x[test])).argmax(1).numpy()
        assert float(np.mean(answers == digits.y[test])) == pytest.approx(own["value"])


def test_the_report_shows_the_models(mixed):
    records, folder, _ = mixed["stacked"]
    console = Console(record=True, width=120)
    print_clients(console, records, Unit.of(records))
    text = console.export_text()
    assert all(name in text for name in MODELS)
    assert '"mlp-large"' in write_page(folder).read_text()
