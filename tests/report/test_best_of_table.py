"""`fedekd table --best-of` and `--chosen-by`: lines of what clients choose, and what they were chosen from.

Other lines stay, but for the states, since Holm's method is over more comparisons, and for gains where a chosen twin
joins the menu.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedekd.cli import main
from fedekd.report.paper_tables import make_tables
from fedekd.report.table_formats import render
from fedekd.runs.choice_file import write as write_choice
from made_records import make_record

LABELS = ("local", "local-smooth", "ditto", "ditto (lam=3.0)", "fedavg", "ditto@alone")
OVER = ("Avg", "Worst", "P10")
WITHOUT = "no method here has several configurations"


def runs(labels: tuple[str, ...] = LABELS, seeds: int = 2) -> list[dict[str, Any]]:
    found = []
    for seed in range(seeds):
        for place, label in enumerate(labels):
            method = label.partition(" (")[0]
            deltas = [0.02 * place * (-1) ** k for k in range(4)]
            one = make_record(method, deltas, local=0.7, seed=seed, label=label, rows=100)
            for client in one["clients"]:
                client |= {"n_val": 50, "val": client["value"], "val_loss": client["value"], "val_error": 0.01}
            one |= {"key": f"{label} {seed}"} | ({"bytes_up": 0, "bytes_down": 0} if "@" in method else {})
            found.append(one)
    return found


def write(folder: Path, records: list[dict[str, Any]]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_a_line_more_and_what_it_was_chosen_from(tmp_path, capsys):
    folder = write(tmp_path / "grid", runs())
    printed = {}
    for words in ("", "--best-of", "--best-of --chosen-by loss", "--chosen-by loss"):
        assert main(["table", folder, *words.split()]) == 0
        printed[words] = capsys.readouterr().out
    which = "ditto (best of 2): each client has the one of ditto, ditto (lam=3.0) that its validation rows choose"
    assert all((which in text) == ("--best-of" in words) for words, text in printed.items())
    assert all(("by loss, unless" in text) == ("loss" in words) for words, text in printed.items())
    write_choice(Path(folder), "loss")
    assert main(["table", folder, "--best-of"]) == 0
    assert capsys.readouterr().out == printed["--best-of --chosen-by loss"] != printed["--best-of"]
    best = [line for line in printed["--best-of"].splitlines() if line.startswith("| ditto (best of 2)")]
    parts = {line.split("|")[2].strip() for line in best}
    assert {"Δ, Avg", "gain, Avg", "clearly helped", "undecided"} <= parts
    assert not any(part.startswith(("recipe", "federation")) for part in parts)  # there is no twin with lam=3.0
    assert "runs are missing" not in printed["--best-of"]


def test_the_page_of_a_study_has_it_in_its_tables(tmp_path, capsys):
    both = [*runs(), *({**one, "dataset": "wards", "key": f"{one['key']} wards"} for one in runs())]
    folder, page = write(tmp_path / "grid", both), tmp_path / "page.html"
    for words in ("", "--best-of"):
        assert main(["report", folder, "--out", str(page), *words.split()]) == 0
        assert ("ditto (best of 2)" in page.read_text(encoding="utf-8")) == bool(words)
    assert main(["report", write(tmp_path / "one", runs()), "--best-of"]) == 2
    assert "--best-of is for the page of a study" in capsys.readouterr().err
    assert main(["report", folder, folder, "--best-of"]) == 2
    assert main(["report", folder, "--site", "0", "--best-of"]) == 2


def test_clients_choose_the_better_of_the_two():
    (table,) = [one for one in make_tables(runs(), best_of=True) if one.name == "transfer_cls"]
    average, worst = (
        {row.label: row.cells[0].mean for row in table.rows if row.heads[1] == part} for part in ("Δ, Avg", "Δ, Worst")
    )
    assert (average["ditto"], worst["ditto"]) == pytest.approx((0, -0.04))
    assert (average["ditto (best of 2)"], worst["ditto (best of 2)"]) == pytest.approx(((0.06 - 0.04) / 2, -0.04))


@pytest.mark.parametrize("twin", [False, True])
def test_which_of_the_other_lines_stay(twin):
    records = runs((*LABELS, "ditto@alone (lam=3.0)") if twin else LABELS)
    before, after = (
        {(table.name, *row.heads): row.cells for table in make_tables(records, best_of=wanted) for row in table.rows}
        for wanted in (False, True)
    )
    changed = {heads for heads, cells in before.items() if after[heads] != cells and heads[0] != "states_cls"}
    assert {(name, part) for name, _, part in changed} <= {("transfer_cls", f"gain, {o}") for o in OVER}
    assert {method for _, method, *_ in changed} == ({"ditto", "fedavg"} if twin else set())
    assert {method for _, method, *_ in after.keys() - before.keys()} == {"ditto (best of 2)"}


@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_every_format_has_it(form):
    assert "ditto (best of 2)" in render(make_tables(runs(), best_of=True), form)


def test_its_recipe_and_federation_where_every_twin_was_run():
    (table,) = [o for o in make_tables(runs((*LABELS, "ditto@alone (lam=3.0)")), best_of=True) if "taken" in o.title]
    parts = {row.heads[1] for row in table.rows if row.label == "ditto (best of 2)"}
    assert {"recipe, Avg", "federation, Avg"} <= parts


def test_nothing_to_choose_from_is_said(tmp_path, capsys):
    for labels in (("local", "local-smooth", "ditto"), ("local", "ditto", "ditto (lam=3.0)")):
        for command in ("table", "report"):
            both = [*runs(labels), *({**one, "dataset": "wards", "key": f"{one['key']} w"} for one in runs(labels))]
            assert main([command, write(tmp_path / "grid", both), "--best-of"]) == 2
            assert WITHOUT in capsys.readouterr().err
