"""`--chosen-by`: what of the validation rows chooses the best alone is one choice for all that is made of a folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import fedekd
from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.report.page import write_difference, write_handout, write_page
from fedekd.runs import choice_file
from fedekd.runs.store import read_records
from fedekd.runs.transfer import analyse
from fedekd.settings import make_settings
from fedekd.studies.grid import load_study

LINE = "run --dataset heart --methods fedavg --alone menu --rounds 3 --epochs 1 --lr 0.02 --quiet --no-report --out"
RUN = LINE.split()
SETTINGS = {"methods": ["fedavg"], "alone": "menu", "rounds": 3, "epochs": 1, "lr": 0.02}
SMOOTH, TWIN = "local-smooth", "fedavg@alone"
VALIDATION = {"local": (0.5, 1.0), SMOOTH: (0.9, 9.0), TWIN: (0.4, 0.2)}
"""By label: the metric, which prefers the one, and the loss, which prefers the other."""
CHOICE = {"metric": SMOOTH, "loss": TWIN}
BY_LOSS = "by loss, unless plain Local's is within one standard error of the lowest"
SITE = "Hungary"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose validation results are made up."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    assert main([*RUN, str(folder)]) == 0
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        for client in line["clients"]:
            val, loss = VALIDATION.get(line["label"], (0.3, 2.0))
            client |= {"n_val": 100, "val": val, "val_loss": loss, "val_error": 0.01}
            client.pop("chosen")
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "out")


def plain(text: str) -> str:
    """On one line, with plain spaces, and without what marks them as HTML."""
    return " ".join(re.sub(r"&#39;|&#x27;", "'", text).replace("\\u0027", "'").split())


def everywhere(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, str]:
    """What page, handout, table and card say."""
    page, sheet, to = folder / "page.html", folder / "sheet.html", folder.parent / "m.safetensors"
    capsys.readouterr()
    assert main(["report", str(folder), "--out", str(page), *more]) == 0
    assert main(["report", str(folder), "--site", SITE, "--out", str(sheet), *more]) == 0
    assert main(["export", str(folder), "--client", SITE, "--to", str(to), *more]) == 0
    capsys.readouterr()
    assert main(["table", str(folder), *more]) == 0
    files = {"page": page, "handout": sheet, "card": to.with_suffix(".card.md")}
    said = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return {name: plain(text) for name, text in {**said, "table": capsys.readouterr().out}.items()}


def advice(folder: Path) -> list[str]:
    """What each client is compared with, as the terminal writes it."""
    (method,) = fedekd.load(folder).transfer
    return [one.alone[0].label for one in method.clients]


@pytest.mark.parametrize("by", ["metric", "loss"])
def test_terminal_page_handout_card_and_table_take_the_same(folder, by, capsys):
    before = (folder / "results.jsonl").read_bytes()
    assert main([*RUN, str(folder), "--chosen-by", by]) == 0
    said = {"terminal": plain(capsys.readouterr().out), **everywhere(folder, capsys)}
    assert (folder / "results.jsonl").read_bytes() == before, "no key is another, and nothing is trained"
    assert set(advice(folder)) == {CHOICE[by]}
    (method,) = fedekd.load(folder).transfer
    (gain,) = {f"{100 * one.parts['gain']:+.1f}".replace("-", "−") for one in method.clients if one.client == SITE}
    for place, text in said.items():
        assert (BY_LOSS in text) == (by == "loss"), place
        if place != "table":
            assert f"({CHOICE[by]})" in text, place
            assert f"({CHOICE['metric' if by == 'loss' else 'loss']})" not in text, place
        if place in ("handout", "card"):
            assert gain in text, place


@pytest.mark.parametrize("told", ["metric", "loss"])
def test_who_reads_may_choose_otherwise_and_the_folder_stays_as_it_is(folder, told, capsys):
    other = "metric" if told == "loss" else "loss"
    choice_file.write(folder, told)
    said = everywhere(folder, capsys, "--chosen-by", other)
    assert {BY_LOSS in text for text in said.values()} == {other == "loss"}
    assert set(advice(folder)) == {CHOICE[told]}
    read = fedekd.load(folder, chosen_by=other)
    assert {one.alone[0].label for method in read.transfer for one in method.clients} == {CHOICE[other]}
    assert {BY_LOSS in text for text in everywhere(folder, capsys).values()} == {told == "loss"}


@pytest.mark.parametrize("by", ["metric", "loss"])
def test_the_best_alone_is_exported_by_the_same(folder, by, capsys):
    to = folder.parent / "m.safetensors"
    assert export(folder, SITE, to, method="alone", chosen_by=by).method == CHOICE[by]
    card = to.with_suffix(".card.md").read_text()
    assert "the best model the client trained alone" in card
    assert (BY_LOSS in card) == (by == "loss")
    capsys.readouterr()
    assert main(["export", str(folder), "--client", SITE, "--to", str(to), "--chosen-by", by]) == 0
    assert (BY_LOSS in capsys.readouterr().out) == (by == "loss")


@pytest.mark.parametrize("by", ["metric", "loss"])
def test_the_card_of_another_model_says_how_to_get_that_one(folder, by):
    to = folder.parent / "m.safetensors"
    export(folder, SITE, to, method="local", chosen_by=by)
    option = " --chosen-by loss" if by == "loss" else ""
    assert f"The best model it trained alone is `--method alone{option}`." in to.with_suffix(".card.md").read_text()


def test_in_python_the_records_carry_it(folder, capsys):
    given = {**SETTINGS, "progress": False, "out": str(folder)}
    result = fedekd.run("heart", chosen_by="loss", **given)
    (method,) = analyse(result.records)
    assert {one.alone[0].label for one in method.clients} == {TWIN}
    assert BY_LOSS in plain(result._repr_html_())
    assert fedekd.load(folder) == result
    again = fedekd.run("heart", **given)
    assert {one.alone[0].label for method in again.transfer for one in method.clients} == {SMOOTH}
    assert set(advice(folder)) == {SMOOTH}, "the last run of a folder decides"
    assert [record["key"] for record in again.records] == [record["key"] for record in result.records]


def test_records_that_were_just_trained_carry_it_too(tmp_path):
    given = {"methods": ["fedavg"], "rounds": 1, "epochs": 1, "progress": False}
    result = fedekd.run("heart", chosen_by="loss", out=str(tmp_path / "out"), **given)
    assert {record["chosen_by"] for record in result.records} == {"loss"}


def test_two_runs_that_choose_otherwise_say_so(folder, capsys):
    other = shutil.copytree(folder, folder.parent / "other")
    choice_file.write(other, "loss")
    text = plain(write_difference(folder, other).read_text(encoding="utf-8"))
    assert "best alone chosen by" in text
    assert BY_LOSS in text
    same = plain(write_difference(folder, other, chosen_by="metric").read_text(encoding="utf-8"))
    assert "best alone chosen by" not in same
    assert BY_LOSS not in same
    assert main(["report", str(folder), str(other), "--out", str(folder / "d.html"), "--chosen-by", "metric"]) == 0
    assert plain((folder / "d.html").read_text(encoding="utf-8")) == same


STUDY = """
dataset = "heart"
methods = ["fedavg"]
alone = "menu"
rounds = 3
epochs = 1
lr = 0.02
models = "none"
"""


def test_a_study_says_it_in_its_file(folder, tmp_path, capsys):
    file = tmp_path / "grid.toml"
    file.write_text(f'{STUDY}chosen_by = "loss"\nout = "{folder}"\n')
    assert main(["study", str(file), "--workers", "1"]) == 0
    said = plain(capsys.readouterr().out)
    assert "0 of them new" in said
    assert f"each client's best alone is chosen on its validation rows {BY_LOSS}" in said
    assert set(advice(folder)) == {TWIN}
    assert main(["study", str(file), "--workers", "1", "--chosen-by", "metric"]) == 0
    assert BY_LOSS not in capsys.readouterr().out
    assert set(advice(folder)) == {SMOOTH}


def test_a_study_has_one_choice(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(f'{STUDY}[[block]]\nchosen_by = "loss"\n[[block]]\nalpha = 0.5\n')
    with pytest.raises(FedekdError, match="chosen_by must be the same for all blocks"):
        load_study(file)


def test_without_a_menu_nothing_is_said_to_be_chosen(tmp_path, capsys):
    file = tmp_path / "grid.toml"
    plain_study = STUDY.replace('alone = "menu"', "").replace("rounds = 3", "rounds = 1")
    file.write_text(f'{plain_study}chosen_by = "loss"\nout = "{tmp_path / "out"}"\n')
    assert main(["study", str(file), "--workers", "1"]) == 0
    assert "by loss" not in capsys.readouterr().out


def test_the_page_of_a_study_takes_it(folder, capsys):
    """It is one of a study where there is more than one dataset."""
    with (folder / "results.jsonl").open("a") as file:
        for record in read_records(folder / "results.jsonl"):
            file.write(json.dumps({**record, "dataset": "wards", "key": f"{record['key']} wards"}) + "\n")
    usual, by_loss = (plain(write_page(folder, chosen_by=by).read_text(encoding="utf-8")) for by in (None, "loss"))
    assert BY_LOSS not in usual
    assert f"Each client's best alone is chosen on its validation rows {BY_LOSS}." in by_loss
    assert f"chosen for each client on its validation rows {BY_LOSS}" in by_loss


@pytest.mark.parametrize("given", ["lose", 3, ["loss"]])
def test_what_is_no_choice_is_refused(given):
    with pytest.raises(FedekdError, match="unknown chosen_by"):
        make_settings({"chosen_by": given})


def test_nor_by_who_reads(folder):
    with pytest.raises(FedekdError, match="unknown chosen_by 'Loss'; did you mean 'loss'"):
        fedekd.load(folder, chosen_by="Loss")


@pytest.mark.parametrize("content", ["[", "[]", "{}", '{"chosen_by": "lose"}', '{"chosen_by": ["loss"]}', "\xff"])
def test_a_damaged_file_is_named_in_one_line(folder, content):
    (folder / "choice.json").write_text(content, encoding="latin-1")
    with pytest.raises(FedekdError, match=r"choice\.json cannot be read") as error:
        fedekd.load(folder)
    assert "\n" not in str(error.value)
    assert fedekd.load(folder, chosen_by="metric").records


def test_a_record_itself_does_not_decide(folder):
    """What its folder says does, or whoever reads it."""
    lines = [{**json.loads(one), "chosen_by": "loss"} for one in (folder / "results.jsonl").read_text().splitlines()]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(advice(folder)) == {SMOOTH}
    assert BY_LOSS not in plain(write_handout(folder, SITE).read_text(encoding="utf-8"))
