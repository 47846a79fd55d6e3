"""`--method alone`: a client that should stay alone gets the best model it trained alone, whatever that is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.runs.results import load
from fedekd.runs.saved_models import find_models
from fedekd.runs.transfer import analyse
from trained import Trained, patients, train, write_patients

MENU: dict[str, Any] = {"alone": "menu", "methods": ["fedavg"], "rounds": 1}
ROUNDS = 4


@pytest.fixture(scope="module")
def choosing() -> Iterator[None]:
    """North does best with smoothed targets, south by the twin; any round with a lower loss is clearly better."""
    with pytest.MonkeyPatch.context() as patch:
        best = "fedekd.runs.alone.best_on_validation"
        patch.setattr(best, lambda options, n_val, *_: options[:2][-1] if n_val > 10 else options[-1])
        patch.setattr("fedekd.runs.choosing._clearly_better", lambda *_: True)
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return patients(write_patients(tmp_path_factory.mktemp("rows") / "ward.csv"))


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory, rows: Any, choosing: None) -> Trained:
    given = {**MENU, "methods": ["fedekd"], "rounds": ROUNDS, "epochs": 3, "lr": 1.0}
    return train(tmp_path_factory.mktemp("wards") / "out", rows, **given)


def right(trained: Trained, position: int, model: Path) -> np.ndarray:
    rows = trained.test_rows(position)
    np.savez(model.with_suffix(".npz"), x=trained.dataset.x[rows])
    return predict(model, model.with_suffix(".npz")).values.argmax(1) == trained.dataset.y[rows]


def test_it_is_the_one_that_verdicts_compare_with(wards: Trained, tmp_path: Path) -> None:
    (method,) = analyse(load(wards.folder).records, wards.folder)
    chosen = [client.alone[0] for client in method.clients]
    assert [one.label for one in chosen] == ["local-smooth-tenth", "fedekd@alone"]
    assert any(one.round < ROUNDS for one in chosen)
    for position, (client, one) in enumerate(zip(method.clients, chosen, strict=True)):
        metadata = export(wards.folder, client.client, tmp_path / "m.safetensors", method="alone")
        assert (metadata.method, metadata.round) == (one.label, (one.round, ROUNDS))
        assert one.rows is not None
        assert (right(wards, position, tmp_path / "m.safetensors") == one.rows.astype(bool)).all()
        card, earlier = (tmp_path / "m.card.md").read_text(), f"| this model: after round {one.round} of {ROUNDS} | "
        assert (
            "This is the best model the client trained alone, by its validation rows. Should this client join" in card
        )
        assert (f"{earlier}{100 * one.value:.1f} % |" in card) == (one.round < ROUNDS)


def test_another_that_was_trained_alone_says_so(wards: Trained, tmp_path: Path) -> None:
    export(wards.folder, "north", tmp_path / "m.safetensors", method="local")
    card = (tmp_path / "m.card.md").read_text()
    assert "This is a model the client trained alone. The best model it trained alone is `--method alone`." in card


def test_the_default_is_the_method_that_federates(tmp_path: Path, rows: Any) -> None:
    trained = train(tmp_path / "out", rows, **MENU)
    assert export(trained.folder, "north", tmp_path / "m.safetensors").method == "fedavg"


def test_without_a_menu_it_is_plain_local(tmp_path: Path, rows: Any) -> None:
    trained = train(tmp_path / "out", rows, **{**MENU, "alone": "plain"})
    assert export(trained.folder, "north", tmp_path / "m.safetensors", method="alone").method == "local"
    assert "This is the model the client trained alone." in (tmp_path / "m.card.md").read_text()


def test_of_several_settings_in_a_folder_it_is_of_the_last(tmp_path: Path, rows: Any, choosing: None) -> None:
    for rounds in (2, 1):
        trained = train(tmp_path / "out", rows, **{**MENU, "rounds": rounds})
    keys = {record["key"] for record in trained.result.records}
    assert export(trained.folder, "south", tmp_path / "m.safetensors", method="alone").about["key"] in keys


@pytest.mark.parametrize("method", ["fedrod", "knnper"])
def test_a_twin_that_answers_with_more_than_a_model(tmp_path: Path, rows: Any, method: str) -> None:
    trained, to = train(tmp_path / "out", rows, rounds=1, methods=[f"{method}@alone"]), tmp_path / "m.safetensors"
    words = ["--client", "north", "--method", f"{method}@alone", "--to", str(to), "--with-rows"]
    assert main(["export", str(trained.folder), *words]) == 0
    assert right(trained, 0, to).mean() == pytest.approx(trained.client(0, f"{method}@alone")["value"])


def test_the_twin_of_second_opinion_as_onnx(tmp_path: Path, rows: Any) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    trained, found = train(tmp_path / "out", rows, rounds=1, methods=["second-opinion@alone"]), []
    for kind in ("safetensors", "onnx"):
        export(trained.folder, "north", tmp_path / f"m.{kind}", method="second-opinion@alone")
        np.savez(tmp_path / "rows.npz", x=trained.dataset.x[trained.test_rows(0)])
        found.append(predict(tmp_path / f"m.{kind}", tmp_path / "rows.npz").values)
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_best_model_that_is_not_kept(wards: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [one for one in find_models(wards.folder) if one.method in ("local", "fedekd")]
    monkeypatch.setattr("fedekd.export.export.find_models", lambda *_: kept)
    with pytest.raises(FedekdError, match="trained alone is fedekd@alone, and its model is not kept here"):
        export(wards.folder, "south", tmp_path / "m.safetensors", method="alone")
