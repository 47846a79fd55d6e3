"""Methods that answer with more than a model: their files give the answers that the run has measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedekd import cli, methods
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.methods import Batch, ClientInit, Exchange, Method, Remember, Train
from fedekd.runs.saved_models import find_models, read_metadata
from lines import Notes
from tiny import tiny_private, tiny_proxy
from trained import Trained, train

TINY = {"private": "tiny:tiny_private", "proxy": "tiny:tiny_proxy"}
TUNED = ["fedavg-tuned", "ditto", "fedrep", "pfedme", "apfl", "apfl-adaptive"]
OPINIONS = ["second-opinion", "second-opinion-near", "second-opinion-taught"]
NAMED = [*TUNED, *OPINIONS, "knnper", "fedrod"]


@dataclass(frozen=True)
class Blend(Method):
    """A mixture of both models whose share each client keeps, with a correction for its classes"""

    share: float = field(default=0.7, metadata={"high": 1})

    name = "blend"
    roles = answers = ("private", "proxy")

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"own": {"share": torch.tensor(self.share)}}

    def steps(self, round: int) -> tuple[Any, ...]:
        return (
            Train(("private", "proxy"), lambda b: b.supervised("private") + b.supervised("proxy")),
            Exchange("proxy"),
            Exchange("bias", send=lambda b: {"of": b.counts.float() / b.counts.sum()}),
        )

    def personalise(self) -> tuple[Remember, ...]:
        return (Remember(lambda b: {"own": {"share": b.memory["own"]["share"] / 2}}),)

    def predict(self, batch: Batch) -> Tensor:
        share = batch.memory["own"]["share"]
        seen = batch.received["bias"]["of"].sum() + batch.counts.sum() / 100
        return share * batch.outputs["private"] + (1 - share) * batch.outputs["proxy"] + 0.01 * seen


@dataclass(frozen=True)
class Midway(Method):
    """Answers with weights between its own, trained on, and the average"""

    name = "midway"
    roles = ("private", "other")
    like: ClassVar[Mapping[str, str]] = {"other": "private"}
    answers = ()
    reads_weights = ("private", "other")

    def steps(self, round: int) -> tuple[Any, ...]:
        return Train(("private",), self.loss), Exchange("private"), Train(("other",), lambda b: b.supervised("other"))

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def personalise(self) -> tuple[Train, ...]:
        return Train(("private",), self.loss, epochs=1), Train(("private",), self.loss, epochs=1)

    def predict(self, batch: Batch) -> Tensor:
        own, other, received = batch.weights["private"], batch.weights["other"], batch.received["private"]
        return batch.apply("private", {n: (own[n] + other[n] + received[n]) / 3 for n in own})


OWN = {"blend": "test_answers:Blend", "midway": "test_answers:Midway"}


@pytest.fixture(scope="module", params=["serial", "stacked"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(folder: Path, data: Any, names: list[Any], engine: str, **more: Any) -> Trained:
    given = {"private": tiny_private, "proxy": tiny_proxy, "rounds": 2, "lr": 0.01, "batch_size": 16, **more}
    return train(folder, data, methods=[*names, Blend(), Midway()], engine=engine, **given)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory, digits: Any, engine: str) -> Trained:
    return trained(tmp_path_factory.mktemp(engine) / "out", digits, NAMED, engine)


@pytest.fixture(scope="module")
def progress(tmp_path_factory: pytest.TempPathFactory, diabetes: Any, engine: str) -> Trained:
    names = [name for name in NAMED if name != "fedrod"]
    return trained(tmp_path_factory.mktemp(engine) / "out", diabetes, names, engine)


def exported(run: Trained, method: str, to: Path, position: int = 1) -> Path:
    own = {"method": OWN.get(method, method), "with_rows": method == "knnper"}
    export(run.folder, str(position), to, **own, **TINY)
    np.savez(to.parent / "rows.npz", x=run.dataset.x[run.test_rows(position)])
    return to


def answers(run: Trained, method: str, model: Path) -> np.ndarray:
    code = {} if model.suffix == ".onnx" else {**TINY, **({"method": OWN[method]} if method in OWN else {})}
    return predict(model, model.parent / "rows.npz", **code).values


def need_onnx() -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("method", [*NAMED, *OWN])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_file_scores_what_the_run_has_measured(scans: Trained, tmp_path: Path, method: str, position: int) -> None:
    found = answers(scans, method, exported(scans, method, tmp_path / "m.safetensors", position))
    right = found.argmax(1) == scans.dataset.y[scans.test_rows(position)]
    assert right.mean() == pytest.approx(scans.client(position, method)["value"], abs=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("method", [*TUNED, *OPINIONS, "knnper", *OWN])
def test_so_does_that_of_a_regression(progress: Trained, tmp_path: Path, method: str) -> None:
    found = answers(progress, method, exported(progress, method, tmp_path / "m.safetensors"))
    error = found - progress.dataset.y[progress.test_rows(1)]
    assert np.sqrt((error**2).mean()) == pytest.approx(progress.client(1, method)["value"], rel=1e-5)


@pytest.mark.parametrize("engine", ["stacked"], indirect=True, scope="module")
@pytest.mark.parametrize("method", ["fedrod", "knnper", "fedavg-tuned", *OPINIONS, *OWN])
def test_onnx_gives_the_same_answers(scans: Trained, tmp_path: Path, method: str) -> None:
    need_onnx()
    found = [answers(scans, method, exported(scans, method, tmp_path / f"m.{k}")) for k in ("safetensors", "onnx")]
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize("engine", ["stacked"], indirect=True, scope="module")
@pytest.mark.parametrize("method", ["knnper", *OPINIONS, *OWN])
def test_and_those_of_a_regression(progress: Trained, tmp_path: Path, method: str) -> None:
    need_onnx()
    found = [
        answers(progress, method, exported(progress, method, tmp_path / f"m.{k}")) for k in ("safetensors", "onnx")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_the_answers_are_not_those_of_the_private_model(scans: Trained, tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    for method in ("fedrod", "knnper", "blend"):
        whole = exported(scans, method, tmp_path / f"{method}.safetensors")
        start = "models/private/"
        alone = {n.removeprefix(start): t for n, t in load_file(whole).items() if n.startswith(start)}
        with safe_open(whole, "pt") as file:
            about = {name: text for name, text in file.metadata().items() if name != "answers"}
        save_file(alone, tmp_path / "alone.safetensors", about)
        private = predict(tmp_path / "alone.safetensors", tmp_path / "rows.npz", private=TINY["private"]).values
        assert np.abs(answers(scans, method, whole) - private).max() > 1e-3


def test_tensors_have_clear_names(scans: Trained, tmp_path: Path) -> None:
    fedrod, knnper, blend, midway, tuned = (
        set(load_file(exported(scans, name, tmp_path / f"{name}.safetensors")))
        for name in ("fedrod", "knnper", "blend", "midway", "fedavg-tuned")
    )
    weights = {name for name, _ in tiny_private((1, 8, 8), 10).named_parameters()}
    private = {f"models/private/{name}" for name in weights}
    assert fedrod == private | {"models/personal/weight", "models/personal/bias"}
    assert knnper == private | {"memory/features", "memory/targets", "memory/real"}
    assert blend > private | {"models/proxy/head.weight", "memory/own/share", "received/bias/of"}
    assert midway >= {
        f"{start}/{n}" for n in weights for start in ("models/private", "models/other", "received/private")
    }
    assert tuned == weights  # as ever


def test_the_run_keeps_what_is_measured_not_what_travels(scans: Trained) -> None:
    """Tuned models differ between clients whose average is one and the same."""
    tuned = [load_file(one.path) for one in find_models(scans.folder) if one.method == "fedavg-tuned"]
    assert len(tuned) == 3
    assert not torch.equal(tuned[0]["head.weight"], tuned[1]["head.weight"])


def test_details_are_of_the_answers(scans: Trained) -> None:
    from fedekd.runs import details

    found = details.read(scans.folder)
    for record in scans.result.records:
        for matrix, client in zip(found[record["key"]]["confusion"], record["clients"], strict=True):
            assert np.trace(matrix) / np.sum(matrix) == pytest.approx(client["value"], abs=1e-12)


def test_it_is_personalised_once_for_each_measurement(digits: Any, tmp_path: Path, engine: str) -> None:
    count = []

    @dataclass(frozen=True)
    class Counting(type(methods.get("fedavg-tuned"))):  # type: ignore[misc]
        def personalise(self) -> Any:
            return (*super().personalise(), Remember(self.noted))

        def noted(self, batch: Batch) -> dict[str, Any]:
            count.append(1)
            return {}

    from fedekd.engines.rehearsal import rehearse
    from fedekd.runs.plan import plan
    from fedekd.settings import make_settings

    given = {"clients": 3, "alpha": 1.0, "rounds": 2, "epochs": 1, "engine": engine, "methods": [Counting()]}
    given |= {"private": tiny_private, "dataset": digits.name}
    rehearse(plan(make_settings(given), digits)[-1].job)
    count.clear()
    train(tmp_path / "out", digits, **{k: v for k, v in given.items() if k != "dataset"})
    assert len(count) == {"serial": 3 * 2, "stacked": 2}[engine]


# Rows


def test_rows_leave_only_on_request(
    scans: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["export", str(scans.folder), "--client", "1", "--method", "knnper", "--to", "m.safetensors"]
    assert cli.main(words) == 2
    assert capsys.readouterr().err == (
        "fedekd: knnper answers from the training rows of client 1, so the file would hold them (features and targets);"
        " add --with-rows to let them out, or choose another --method\n"
    )
    assert not list(tmp_path.iterdir())
    assert cli.main([*words, "--with-rows"]) == 0
    assert capsys.readouterr().err == "m.safetensors holds training rows of client 1: guard it as you guard those\n"
    card = Path("m.card.md").read_text()
    assert f"**the file holds the {scans.client(1, 'knnper')['n_train']} training rows of this client**" in card


def test_no_row_of_another_client_is_in_the_file(scans: Trained, tmp_path: Path) -> None:
    sizes = [scans.client(k, "knnper")["n_train"] for k in range(3)]
    small = int(np.argmin(sizes))
    kept = load_file(exported(scans, "knnper", tmp_path / "m.safetensors", small))
    assert int(kept["memory/real"].sum()) == sizes[small] < max(sizes)
    padding = ~kept["memory/real"]
    assert not kept["memory/features"][padding].any()
    assert not kept["memory/targets"][padding].any()


def test_a_kept_file_can_be_used_where_it_lies(scans: Trained, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=scans.dataset.x[scans.test_rows(0)])
    path = next(one.path for one in find_models(scans.folder) if (one.method, one.client) == ("knnper", "0"))
    right = predict(path, tmp_path / "rows.npz", **TINY).values.argmax(1) == scans.dataset.y[scans.test_rows(0)]
    assert right.mean() == pytest.approx(scans.client(0, "knnper")["value"], abs=1e-12)


# Cards


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ditto", "- the answer is the private model's\n"),
        ("fedavg-tuned", "- the answer is the private model's, after what fedavg-tuned has a client do before"),
        ("fedrod", "- the answer is made by fedrod (gamma 1.0) from the private and personal models\n"),
        ("knnper", "from the private model and what the client remembers (features, real, targets)\n"),
        (
            "blend",
            "- the answer is made by blend (share 0.7) from the private and proxy models, what the client remembers",
        ),
        ("blend", "proxy `tiny:tiny_proxy`"),
    ],
)
def test_the_card_says_what_the_file_answers_with(scans: Trained, tmp_path: Path, method: str, words: str) -> None:
    exported(scans, method, tmp_path / "m.safetensors")
    assert words in (tmp_path / "m.card.md").read_text()


# Code, old files and damaged ones


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "answers by a method of your own; say where its code is: --method test_answers:Blend"),
        ({"method": OWN["blend"]}, "holds a model of your own; say where its code is: --private tiny:tiny_private"),
        ({"method": OWN["blend"], "private": TINY["private"]}, "say where its code is: --proxy tiny:tiny_proxy"),
        ({"method": OWN["midway"], **TINY}, "unknown parameter of method 'midway' 'share'"),
        ({"method": "elsewhere:Blend", **TINY}, "No module named 'elsewhere'; looked for among"),
        ({"method": "fedrod", **TINY}, "unknown parameter of method 'fedrod'"),
    ],
)
def test_code_is_never_imported_on_a_files_word(
    scans: Trained, tmp_path: Path, given: dict[str, str], words: str
) -> None:
    model = exported(scans, "blend", tmp_path / "m.safetensors")
    with pytest.raises(FedekdError, match=words) as caught:
        predict(model, tmp_path / "rows.npz", **given)
    assert "\n" not in str(caught.value)


def test_a_name_of_ours_with_code_of_somebody_else(scans: Trained, tmp_path: Path) -> None:
    model = exported(scans, "fedrod", tmp_path / "m.safetensors")
    change(model, {}, code="trained:not_run")
    with pytest.raises(FedekdError, match="--method trained:not_run"):
        answers(scans, "fedrod", model)


def change(model: Path, tensors: dict[str, Tensor | None], **entries: Any) -> None:
    with safe_open(model, "pt") as file:
        about = file.metadata()
    own = {**json.loads(about["answers"]), **entries}
    about["answers"] = json.dumps({name: value for name, value in own.items() if value is not KeyError})
    found = {**load_file(model), **tensors}
    save_file({name: t for name, t in found.items() if t is not None}, model, about)


@pytest.mark.parametrize(
    ("tensors", "entries", "words"),
    [
        ({"memory/features": None}, {}, "is damaged: it lacks memory/features; export it again"),
        ({"models/private/head.weight": None}, {}, 'do not fit the model tiny:tiny_private: .*"head.weight"'),
        ({"memory/features": torch.zeros(4, 3)}, {}, "knnper cannot answer from what .* holds"),
        ({"memory/targets": torch.zeros(0, dtype=torch.int64)}, {}, "knnper cannot answer from what .* holds"),
        ({}, {"roles": "private"}, "metadata cannot be right"),
        ({}, {"counts": ["many"]}, "metadata cannot be right"),
        ({}, {"keeps_rows": "no"}, "metadata cannot be right"),
        ({}, {"knows": KeyError}, "metadata cannot be right .*do not say their knows"),
        ({}, {"knows": []}, "reads memory"),
        ({}, {"parameters": {"k": 2.5}}, "knnper.k must be a whole number"),
        ({}, {"parameters": {"lam": 3.0}}, "knnper.lam must be"),
        ({}, {"parameters": {"depth": 3}}, "unknown parameter"),
        ({}, {"method": "no"}, "answers by a method of your own"),
    ],
)
def test_what_is_damaged_or_lacking_is_one_line(
    scans: Trained, tmp_path: Path, tensors: dict[str, Tensor | None], entries: dict[str, Any], words: str
) -> None:
    model = exported(scans, "knnper", tmp_path / "m.safetensors")
    change(model, tensors, **entries)
    with pytest.raises(FedekdError, match=words) as caught:
        answers(scans, "knnper", model)
    assert "\n" not in str(caught.value)


def test_a_file_of_before_still_answers(scans: Trained, tmp_path: Path) -> None:
    """Bare weights, and metadata that say nothing of answers."""
    model = exported(scans, "ditto", tmp_path / "m.safetensors")
    expected = answers(scans, "ditto", model)
    with safe_open(model, "pt") as file:
        about = file.metadata()
    assert "answers" not in about
    del about["personalised"]
    save_file(load_file(model), model, about)
    assert read_metadata(model).answers is None
    np.testing.assert_array_equal(answers(scans, "ditto", model), expected)


@dataclass(frozen=True)
class Astray(Blend):
    """Applies a model that it does not say it answers with"""

    name = "astray"
    answers = ("private",)
    reads_weights = ("private",)

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["private"] + 0 * batch.apply("proxy", {})


@pytest.mark.parametrize(("method", "words"), [(Astray(), "astray applies the proxy model")])
def test_what_a_file_cannot_hold_is_told_and_costs_no_run(
    digits: Any, tmp_path: Path, method: Method, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedekd.runs.runner import run
    from fedekd.settings import make_settings

    notes = Notes()
    given = {"clients": 3, "alpha": 1.0, "rounds": 1, "epochs": 1, "methods": [method], "private": tiny_private}
    settings = make_settings({**given, "proxy": tiny_proxy, "dataset": "digits", "out": str(tmp_path)})
    result = run(settings, notes, digits)
    assert [record["method"] for record in result.records] == ["local", method.name]
    (line,) = notes.lines
    assert "the run is kept, but not all it leaves" in line
    assert words in line


def test_a_site_keeps_its_answers_too(images: Any, tmp_path: Path) -> None:
    """The end of a federation at a site, without the federation."""
    from types import SimpleNamespace

    from fedekd.engines.job import Job, Training
    from fedekd.engines.serial import Serial
    from fedekd.flower.site.alone import AloneMenu
    from fedekd.flower.site.chosen_round import ChosenRound
    from fedekd.flower.site.report import finish

    site = SimpleNamespace(name="0", share=(), chosen_by="metric", group=None)
    terms = SimpleNamespace(method="knnper", aggregation="plain")
    training = Training(rounds=2, epochs=1, batch_size=16, lr=0.01)
    job = Job(images, methods.get("knnper"), 0, training, tiny_private, tiny_proxy)
    engine, menu = Serial(job), AloneMenu(job, "knnper", 0, whole=False)
    for _ in range(2):
        engine.round()
    menu.train(2)
    finish(site, tmp_path, terms, engine.clients[0], menu, ChosenRound(), missed=0)  # type: ignore[arg-type]
    report = json.loads((tmp_path / "report.json").read_text())
    rows = images.clients[0].test
    np.savez(tmp_path / "rows.npz", x=images.dataset.x[rows])
    for one in find_models(tmp_path):
        right = predict(one.path, tmp_path / "rows.npz", **TINY).values.argmax(1) == images.dataset.y[rows]
        value = report["local" if one.method == "local" else "value"]
        assert right.mean() == pytest.approx(value, abs=1e-12)
        assert one.keeps_rows == (one.method == "knnper")
