"""Figures for a manuscript: there for a run and for a study, with their fonts, from names of any kind."""

from __future__ import annotations

import pytest
from test_page import save

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.report.figures import write_figures

RUN = {"clients", "methods", "learning", "holdings", "trust", "reliability", "communication", "time"}
BEGINS = {"pdf": b"%PDF", "svg": b"<svg", "png": b"\x89PNG"}


@pytest.mark.parametrize(("format", "metric"), [("pdf", "accuracy"), ("svg", "rmse"), ("png", "accuracy")])
def test_a_run_gives_all_its_figures(tmp_path, result, format, metric):
    *paths, captions = write_figures(save(tmp_path, result(3, 2, metric=metric).records), format)
    assert {path.stem for path in paths} >= RUN
    said = captions.read_text(encoding="utf-8")
    assert said.count("## ") == len(paths)
    assert "Chosen: method fedekd, split (seed) 0." in said
    assert "Point at" not in said  # which nobody can do on paper
    assert "Choose one above" not in said
    assert all(path.parent == tmp_path / "figures" and path.suffix == f".{format}" for path in paths)
    assert all(path.read_bytes().startswith(BEGINS[format]) for path in paths)


def test_fonts_are_in_the_file(tmp_path, result):
    folder = save(tmp_path, result(2, 1).records, details=False)
    for path in write_figures(folder, "pdf")[:-1]:
        content = path.read_bytes()
        assert b"/FontFile2" in content  # TrueType
        assert b"/Type3" not in content
    for path in write_figures(folder, "svg")[:-1]:
        assert b"<text" in path.read_bytes()


def test_the_same_results_give_the_same_bytes(tmp_path, result):
    folder = save(tmp_path, result(2, 2).records, details=False)
    for format in ("png", "svg"):
        first, again = (write_figures(folder, format, tmp_path / name) for name in ("one", "two"))
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True))


def test_a_name_is_text_and_never_mathematics(tmp_path, record):
    records = [record("local"), record("fedekd")]
    for one in records:
        one["clients"][0]["id"] = "$x_{ & <b>"
    (svg,) = [path for path in write_figures(save(tmp_path, records), "svg") if path.stem == "clients"]
    assert "$x_{ &amp; &lt;b&gt;" in svg.read_text(encoding="utf-8")


def test_what_left_no_details_is_left_out(tmp_path, result):
    *paths, _ = write_figures(save(tmp_path, result(2, 1).records, details=False), "png")
    assert {path.stem for path in paths} == {"clients", "methods", "communication", "time"}


def test_a_study_has_no_figures_of_one_run(tmp_path, record):
    study = save(tmp_path / "small", [record("fedekd"), record("fedekd", metric="rmse", seed=1)], details=False)
    with pytest.raises(FedekdError, match="one run"):
        write_figures(study, "svg", tmp_path, method="fedekd")


def test_the_command_takes_a_method_and_a_seed_that_are_there(tmp_path, result, capsys):
    folder = save(tmp_path, result(2, 2).records)
    assert main(["figures", str(folder), "--format", "svg", "--method", "fedavg", "--seed", "1"]) == 0
    assert "fedavg: Client by client" in (folder / "figures" / "clients.svg").read_text(encoding="utf-8")
    assert main(["figures", str(folder), "--method", "fedprox"]) == 2
    assert main(["figures", str(folder), "--seed", "7"]) == 2
    assert "there are 0, 1" in capsys.readouterr().err
    with pytest.raises(FedekdError, match="unknown format"):
        write_figures(folder, "gif")


def test_a_dataset_with_sites_of_its_own_has_one_figure_and_no_alpha(tmp_path, record):
    both = [("cifar10", 0.1), ("cifar10", 0.5), ("heart", None)]
    runs = [(record(method), name, alpha) for name, alpha in both for method in ("local", "fedekd")]
    records = [{**run, "dataset": name, "alpha": alpha, "key": f"{n}"} for n, (run, name, alpha) in enumerate(runs)]
    paths = write_figures(save(tmp_path, records, details=False), "svg")
    assert {path.stem for path in paths if path.stem.startswith("results-")} == {
        "results-cifar10-0.1", "results-cifar10-0.5", "results-heart"
    }  # fmt: skip
