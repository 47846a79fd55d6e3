"""The paper's tables from synthetic records: every figure below can be worked out by hand."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from fedekd import metrics
from fedekd.errors import FedekdError
from fedekd.report.paper_tables import make_tables, paper_figures
from fedekd.report.study_records import StudyRecords
from fedekd.report.table_formats import render, select
from fedekd.runs.results import load
from fedekd.runs.store import read_failures
from made_records import make_record as made


def record(
    method="fedekd", deltas=(0.01, -0.03), *, dataset="cifar10", alpha=0.1, seed=0, label=None, local=0.5, **more
):
    task = "regression" if dataset in ("retinamnist", "dr_regular", "diabetes") else "classification"
    values = [local + d for d in deltas]
    shared = {"n_val": 20, "n_test": 40, "local": local}
    clients = [{"id": str(k), **shared, "value": v, "delta": v - local} for k, v in enumerate(values)]
    sent = 0 if method in ("local", "constant") else 9
    return {
        "dataset": dataset,
        "alpha": alpha,
        "seed": seed,
        "method": method,
        "label": label or method,
        "params": {"rounds": 5, "beta": 1.0, "lambda_kd": 1.0} | more.pop("params", {}),
        "task": task,
        "metric": "accuracy" if task == "classification" else "rmse",
        "clients": clients,
        **metrics.summarise(values, [local] * len(values), task == "classification"),
        "bytes_up": sent,
        "bytes_down": sent,
        "trust": more.pop("trust", []),
        "partition": {"kind": "dirichlet", "clients": len(values), "fingerprint": str(seed)},
        "key": f"{method} {label} {dataset} {alpha} {seed} {more}",
        **more,
    }


def table_of(tables, name):
    return select(tables, name)[0]


def cells(table, label):
    row = next(row for row in table.rows if row.label == label)
    return {f"{group} {name}".strip(): cell for (group, name), cell in zip(table.columns, row.cells, strict=True)}


# --- the paper's figures ---------------------------------------------------------------------------------


def test_the_papers_figures_are_all_there():
    figures = paper_figures()
    assert len(figures) == 456
    assert len({f["table"] for f in figures}) == 9
    datasets = {StudyRecords.key_of(f["dataset"]) for f in figures}
    tables = make_tables([record(dataset=dataset) for dataset in datasets], against_paper=True)
    shown = [cell for table in tables for row in table.rows for cell in row.cells if cell.paper]
    assert len(shown) == 456
    assert cells(table_of(tables, "neg_transfer_main"), "fedekd")["CIFAR-10 α=0.1"].paper == (-0.0033, 0.0098)
    assert cells(table_of(tables, "ablation"), "fedekd-ungated")["OrganAMNIST α=0.5"].paper == (-0.2408, 0.0404)
    retinopathy = cells(table_of(tables, "neg_transfer_regression"), "feddyn")["Diabetic Retinopathy α=0.1"]
    assert retinopathy.paper == (1.3174, 2.3447)
    assert retinopathy.mean is None


def test_the_papers_figure_stands_beside_ours():
    runs = [record(deltas=[0.01, 0.03], seed=s) for s in (0, 1)]
    tables = [table_of(make_tables(runs, against_paper=True), "neg_transfer_main")]
    assert "0.0200±0.0000 (-0.0033±0.0098)" in render(tables)
    assert r"$0.0200_{\pm 0.0000}$ ($-0.0033_{\pm 0.0098}$)" in render(tables, "latex")
    rows = list(csv.DictReader(io.StringIO(render(tables, "csv"))))
    ours = next(r for r in rows if (r["label"], r["group"], r["column"]) == ("fedekd", "CIFAR-10", "0.1"))
    assert float(ours["paper_mean"]) == -0.0033
    assert float(ours["difference"]) == pytest.approx(0.02 + 0.0033)


# --- figures and marks -----------------------------------------------------------------------------------


def test_mean_and_population_deviation_over_seeds():
    runs = [record(deltas=d, seed=s) for s, d in enumerate([[0.02, 0.04], [-0.01, 0.03]])]
    tables = make_tables(runs)
    average = cells(table_of(tables, "neg_transfer_main"), "fedekd")["CIFAR-10 α=0.1"]
    assert (average.mean, average.std, average.seeds) == (pytest.approx(0.02), pytest.approx(0.01), 2)
    worst = cells(table_of(tables, "neg_transfer_worst"), "fedekd")["CIFAR-10 α=0.1"]
    assert (worst.mean, worst.std) == (pytest.approx(0.005), pytest.approx(0.015))
    low = cells(table_of(tables, "neg_transfer_p10"), "fedekd")["CIFAR-10 α=0.1"]
    assert low.mean == pytest.approx((0.022 - 0.006) / 2)
    assert cells(table_of(tables, "mean_client_acc"), "fedekd")["CIFAR-10 α=0.1"].mean == pytest.approx(0.52)


def test_best_and_second_follow_the_direction_and_ties_share():
    given = {"local": 0.0, "fedtype": 0.0, "fedavg": -0.2, "fedekd": 0.00001, "fedprox": -0.1}
    for dataset, table, column in (
        ("cifar10", "neg_transfer_main", "CIFAR-10 α=0.1"),
        ("retinamnist", "neg_transfer_regression", "RetinaMNIST α=0.1"),
    ):
        sign = 1 if dataset == "cifar10" else -1
        methods = {m: d for m, d in given.items() if dataset == "cifar10" or m != "fedtype"}
        runs = [record(m, [sign * d, sign * d], dataset=dataset, seed=s) for m, d in methods.items() for s in (0, 1)]
        found = table_of(make_tables(runs), table)
        marks = {m: cells(found, m)[column].mark for m in methods}
        tied = dict.fromkeys(m for m in methods if m in ("local", "fedtype", "fedekd"))  # alike to four decimals
        assert marks == {**dict.fromkeys(methods, ""), **dict.fromkeys(tied, "best"), "fedprox": "second"}
    text = render([found])
    assert "**0.0000±0.0000**" in text
    assert "<u>0.1000±0.0000</u>" in text
    assert "-0.0000" not in text


def test_our_rows_stand_below_the_papers():
    names = ("constant", "local", "fml", "fedekd-half", "fedekd", "mine")
    runs = [record(m, dataset="retinamnist") for m in names]
    ours = ["local", "fml", "fedekd-half", "constant", "mine"]
    table = table_of(make_tables(runs), "neg_transfer_regression")
    assert [row.label for row in table.rows] == ["fedekd", *ours]
    table = table_of(make_tables(runs, against_paper=True), "neg_transfer_regression")
    assert [row.label for row in table.rows] == ["feddyn", "fedprox", "fedavg", "fedekd", *ours]


def test_one_seed_has_no_deviation_and_no_mark():
    table = table_of(make_tables([record("fedekd", [0.1, 0.1]), record("fedavg", [0.2, 0.2])]), "neg_transfer_main")
    found = [cells(table, m)["CIFAR-10 α=0.1"] for m in ("fedekd", "fedavg")]
    assert [(cell.std, cell.mark) for cell in found] == [(None, ""), (None, "")]
    assert not any(sign in render([table]) for sign in ("±", "**", "<u>"))
    assert "one seed has neither deviation nor interval, and nothing of it is marked" in table.notes
    harmed = table_of(make_tables([record("fedekd", [0.1, 0.1]), record("fedavg", [-0.2, 0.2])]), "harmed_cls")
    assert "**" not in render([harmed])


# --- what is missing -------------------------------------------------------------------------------------


def test_missing_cells_are_dashes_and_counted():
    runs = [record("fedekd", seed=s) for s in (0, 1)] + [record("fedavg", seed=0)]
    table = table_of(make_tables(runs), "neg_transfer_main")
    assert cells(table, "fedavg")["CIFAR-10 α=0.1"].few
    assert not cells(table, "fedekd")["CIFAR-10 α=0.1"].few
    assert cells(table, "fedekd")["CIFAR-10 α=0.3"].mean is None
    which = "fedavg, fedekd of CIFAR-10 (9)"
    assert any(note.startswith(f"9 of this table's 12 runs are missing: {which}") for note in table.notes)
    text = render([table])
    assert " – |" in text
    assert " n=1" in text


def test_a_dataset_without_a_record_has_no_column_and_a_note_says_why():
    failures = [{"key": "", "dataset": "octmnist", "alpha": None, "seed": None, "error": "OCTMNIST is not in data"}]
    tables = make_tables([record()], failures, against_paper=True)
    assert {dataset for table in tables for dataset, _ in table.columns} == {"CIFAR-10"}
    others = "no runs of FashionMNIST, OrganAMNIST here: not asked for, or `fedekd data fetch NAME` first"
    for name in ("neg_transfer_main", "paired_local_cls"):
        notes = table_of(make_tables([record(), record("local")], failures), name).notes
        assert [note for note in notes if note.startswith("no runs of")] == [
            "no runs of OCTMNIST here: OCTMNIST is not in data",
            others,
        ]


def test_a_failure_that_was_mended_is_not_mentioned():
    run = record()
    failure = {"key": run["key"], "dataset": "cifar10", "alpha": 0.1, "seed": 0, "error": "diverged"}
    assert not any("diverged" in n for t in make_tables([run], [failure]) for n in t.notes)
    assert any("diverged" in n for t in make_tables([run], [{**failure, "key": "x"}]) for n in t.notes)


def test_runs_with_other_settings_never_mix():
    runs = [record(seed=s) for s in (0, 1)] + [record(deltas=[0.4, 0.4], params={"rounds": 9}, versions=2)]
    table = table_of(make_tables(runs), "neg_transfer_main")
    assert cells(table, "fedekd")["CIFAR-10 α=0.1"].mean == pytest.approx(-0.01)
    (note,) = (note for note in table.notes if note.startswith("left out: 1 run of CIFAR-10 with other settings"))
    assert note.endswith("; those shown have 2 clients, 5 rounds and all training rows")
    other = record(params={"lr": 0.2, "augment": "flip-crop"}, versions=2)
    runs = [*(record(seed=s, params={"lr": 0.1}) for s in (0, 1)), other]
    (note,) = (note for note in table_of(make_tables(runs), "neg_transfer_main").notes if note.startswith("left out"))
    assert note.endswith("all training rows, lr 0.1, augment none")
    folds = {**record()["partition"], "folds": 5, "fold": 0, "fixed": True, "seed": 0}
    other = {**record(versions=2), "partition": folds, "metric": "auroc"}
    other["params"] = {**other["params"], "metric": "auroc"}
    runs = [*(record(seed=s) for s in (0, 1)), other]
    (note,) = (note for note in table_of(make_tables(runs), "neg_transfer_main").notes if note.startswith("left out"))
    assert note.endswith("all training rows, metric accuracy, no split_seed, no folds")


def test_own_datasets_get_tables_of_their_own():
    tables = make_tables([record(m, dataset="wards", alpha=None) for m in ("local", "fedekd")])
    assert [t.name for t in tables] == [
        "neg_transfer_main",
        "neg_transfer_worst",
        "neg_transfer_p10",
        "mean_client_acc_main",
        "paired_fedekd_cls",
        "paired_local_cls",
        "harmed_cls",
    ]
    assert tables[0].columns == (("wards", "own sites"),)
    evenly = [record(m, dataset="wards", alpha=None) for m in ("local", "fedekd")]
    for one in evenly:
        one["partition"] = {**one["partition"], "kind": "iid"}
    assert make_tables(evenly)[0].columns == (("wards", "dealt out evenly"),)
    assert [row.label for row in tables[0].rows] == ["fedekd", "local"]
    assert tables[0].heads == ("method",)
    beside = make_tables([record(m, dataset="wards", alpha=None) for m in ("local", "fedekd")], against_paper=True)
    assert beside == tables


def test_nothing_gives_no_tables():
    assert make_tables([]) == []


# --- what the paper lacks --------------------------------------------------------------------------------


def test_paired_differences_with_their_interval():
    ours, other = [0.03, 0.05, 0.04], [0.01, 0.02, 0.03]
    runs = [record("fedekd", [d, d], seed=s) for s, d in enumerate(ours)]
    runs += [record("fedavg", [d, d], seed=s) for s, d in enumerate(other)] + [record("fedavg", seed=7)]
    runs += [record("local", [0, 0], seed=s) for s in range(3)]
    tables = make_tables(runs)
    cell = cells(table_of(tables, "paired_fedekd_cls"), "fedavg")["CIFAR-10 α=0.1"]
    assert cell.mean == pytest.approx(0.02)
    assert cell.interval == pytest.approx((0.02 - 4.302653 * 0.01 / 3**0.5, 0.02 + 4.302653 * 0.01 / 3**0.5))
    assert (cell.seeds, cell.mark) == (3, "")
    alone = cells(table_of(tables, "paired_local_cls"), "fedekd")["CIFAR-10 α=0.1"]
    assert alone.mean == pytest.approx(0.04)
    assert alone.mark == "best"
    assert "**+0.0400 [+0.0152, +0.0648]**" in render(tables)


def test_for_errors_an_interval_below_zero_is_the_better_side():
    runs = [record("fedekd", [-0.1 - s / 100] * 2, seed=s, dataset="dr_regular") for s in range(3)]
    runs += [record("local", [0, 0], seed=s, dataset="dr_regular") for s in range(3)]
    assert cells(table_of(make_tables(runs), "paired_fedekd_reg"), "local")["Diabetic Retinopathy α=0.1"].mark == "best"


def test_without_test_rows_clients_are_harmed_by_sign_alone():
    runs = [record("fedekd", d, seed=s) for s, d in enumerate([[0.1, -0.1, 0], [0.1, 0.2, -0.1]])]
    runs += [record("fedavg", [-0.1, -0.1, -0.1], seed=s) for s in (0, 1)]
    runs += [record("fedekd", [0.1, -0.2, 0], dataset="retinamnist")]
    tables = make_tables(runs)
    table = table_of(tables, "harmed_cls")
    assert cells(table, "fedekd")["CIFAR-10 α=0.1"].share == (2, 6)
    assert cells(table, "fedekd")["CIFAR-10 α=0.1"].mark == "best"
    assert cells(table, "fedavg")["CIFAR-10 α=0.1"].share == (6, 6)
    assert cells(table_of(tables, "harmed_reg"), "fedekd")["RetinaMNIST α=0.1"].share == (1, 3)
    assert "**2/6**" in render([table])
    assert "by sign alone" in table.title
    assert not any(t.name.startswith(("states", "transfer")) for t in tables)


def test_the_papers_study_shows_recipe_federation_and_gain_beside_delta():
    """From the committed records: what was not run is a dash, and a note says why."""
    folder = Path(__file__).parents[2] / "results" / "paper"
    shown = ("local", "fedekd", "fedprox", "fedekd@alone", "local-smooth")
    records = [r for r in load(folder).records if r["label"] in shown]
    tables = make_tables(records, read_failures(folder))
    table = table_of(tables, "transfer_cls")
    own = {row.heads[1]: row for row in table.rows if row.label == "fedekd"}
    assert list(own) == [
        f"{part}, {over}" for part in ("Δ", "recipe", "federation", "gain") for over in ("Avg", "Worst", "P10")
    ]
    organ = table.columns.index(("OrganAMNIST", "α=0.5"))
    delta, recipe, federation, gain = (
        own[f"{part}, Avg"].cells[organ] for part in ("Δ", "recipe", "federation", "gain")
    )
    assert delta.mean == pytest.approx(recipe.mean + federation.mean)
    assert None not in (delta.interval, federation.interval, gain.interval)
    assert gain.mean < delta.mean
    assert "OCTMNIST" not in {dataset for dataset, _ in table.columns}
    assert any(note.startswith("no runs of OCTMNIST here: its file was not available") for note in table.notes)
    assert "recipe, Avg" not in {row.heads[1] for row in table.rows if row.label == "fedprox"}  # its twin has not run


def test_controls_that_have_not_run_are_dashes_and_say_so():
    runs = [
        made(m, [d] * 3, seed=s) for s in range(3) for m, d in (("local", 0), ("fedekd", 0.02), ("fedekd@alone", 0.01))
    ]
    runs += [
        record(m, dataset=d, seed=s) for s in range(3) for m in ("local", "fedekd") for d in ("cifar10", "retinamnist")
    ]
    tables = make_tables(runs)
    own = {row.heads[1]: row.cells for row in table_of(tables, "transfer_cls").rows}
    columns = [" ".join(column) for column in table_of(tables, "transfer_cls").columns]
    assert own["federation, Avg"][columns.index("digits α=0.1")].mean == pytest.approx(0.01)
    assert own["federation, Avg"][columns.index("CIFAR-10 α=0.1")].mean is None
    assert own["gain, Avg"][columns.index("CIFAR-10 α=0.1")].mean is None
    for name, title in (("transfer_cls", "CIFAR-10"), ("transfer_reg", "RetinaMNIST")):
        notes = table_of(tables, name).notes
        assert any(f"is not known on {title}: " in note for note in notes)
        assert " – |" in render([table_of(tables, name)])


def test_states_and_parts_stand_where_records_hold_test_rows():
    names = ("local", "local-smooth", "fedekd@alone", "fedekd", "constant")
    deltas = {"fedekd": [0.05, -0.05, 0.0], "fedekd@alone": [0.01] * 3}
    runs = [made(n, deltas.get(n, [0.0] * 3), rows=2000, seed=s) for s in range(3) for n in names]
    for run in runs:
        run["bytes_up"] = run["bytes_down"] = 0 if run["method"] == "constant" else run["bytes_up"]
    tables = make_tables([*runs, record("fedekd", [-0.1, 0.1]), record("local", [0, 0])])
    states = table_of(tables, "states_cls")
    assert [(row.heads, row.cells[0].share) for row in states.rows] == [
        (("fedekd", "clearly harmed"), (3, 9)),
        (("fedekd", "clearly helped"), (3, 9)),
        (("fedekd", "equivalent"), (3, 9)),
        (("fedekd", "undecided"), (0, 9)),
    ]
    assert states.columns == (("digits", "α=0.1"),)
    assert any("client 3 has other rows" in note for note in states.notes)
    parts = {row.heads[1]: row.cells[-1] for row in table_of(tables, "transfer_cls").rows}
    assert {name: round(cell.mean, 6) for name, cell in parts.items()} == {
        "Δ, Avg": 0.0, "Δ, Worst": -0.05, "Δ, P10": -0.04,
        "recipe, Avg": 0.01, "recipe, Worst": 0.01, "recipe, P10": 0.01,
        "federation, Avg": -0.01, "federation, Worst": -0.06, "federation, P10": -0.05,
        "gain, Avg": 0.0, "gain, Worst": -0.05, "gain, P10": -0.04,
    }  # fmt: skip
    assert parts["recipe, Avg"].mark == "best"
    assert parts["federation, Avg"].mark == "second"
    assert cells(table_of(tables, "harmed_cls"), "fedekd")["CIFAR-10 α=0.1"].share == (1, 2)
    assert cells(table_of(tables, "harmed_cls"), "fedekd")["digits α=0.1"].share is None
    assert "local-smooth" in [row.label for row in table_of(tables, "paired_local_cls").rows]
    for format in ("markdown", "latex", "csv"):
        assert "clearly harmed" in render([states], format)


def test_a_sweep_has_a_row_for_each_value_and_the_default_among_them():
    log = [{"mean": 0.5}, {"mean": 0.6}]
    runs = [record("local", [0, 0], seed=s, alpha=0.5) for s in (0, 1)]
    for beta, gain in ((0.25, 0.01), (8.0, 0.03)):
        label, params = f"fedekd (beta={beta})", {"beta": beta}
        runs += [
            record("fedekd", [gain + s / 100] * 2, label=label, params=params, seed=s, alpha=0.5, trust=log)
            for s in (0, 1)
        ]
    runs += [record("fedekd", [0.02 + s / 100] * 2, seed=s, alpha=0.5, trust=log) for s in (0, 1)]
    runs += [record("fedekd", [0, 0], label="fedekd (lambda_kd=0.0)", params={"lambda_kd": 0.0}, alpha=0.5)]
    tables = make_tables(runs)
    table = table_of(tables, "sweep_cifar10_0.5_fedekd")
    heads = [("beta", "0.25"), ("beta", "1"), ("beta", "8"), ("lambda_kd", "0"), ("lambda_kd", "1")]
    assert [row.heads for row in table.rows] == heads
    last = cells(table, "fedekd (beta=8.0)")
    assert last["Avg Δ"].mean == pytest.approx(0.035)
    assert last["minus fedekd as it is"].mean == pytest.approx(0.01)
    assert last["minus Local"].interval is not None
    assert last["mean trust, last round"].mean == pytest.approx(0.6)
    assert "fedekd (beta=8.0)" not in [row.label for t in tables if t is not table for row in t.rows]


def test_a_method_that_was_only_run_with_changed_parameters_is_in_every_table():
    label = "own:Own (mu=0.5)"
    runs = [record("local", [0, 0], seed=s, alpha=0.5) for s in (0, 1)]
    runs += [record("own:Own", [0.1, 0.2 + s], label=label, params={"mu": 0.5}, seed=s, alpha=0.5) for s in (0, 1)]
    tables = make_tables(runs)
    assert label in [row.label for row in table_of(tables, "paired_local_cls").rows]
    assert not any(table.name.startswith("sweep") for table in tables)
    assert [one.label for one in StudyRecords(runs).findings] == [label]
    runs += [record("own:Own", [0.1, 0.1], label="own:Own (mu=2.0)", params={"mu": 2.0}, alpha=0.5)]
    sweep = table_of(make_tables(runs), "sweep_cifar10_0.5_own:Own")
    assert [row.heads for row in sweep.rows] == [("mu", "0.5"), ("mu", "2")]
    assert [name for _, name in sweep.columns] == ["Avg Δ", "minus Local"]  # nothing to be minus, no trust


# --- formats ---------------------------------------------------------------------------------------------


def test_a_latex_caption_has_the_names_as_they_are_and_one_full_stop_after_each_note():
    runs = [made("local", rows=60, seed=s) for s in (0, 1)]
    for mu in (0.5, 2.0):
        label = f"own:Own (mu={mu})"
        runs += [{**made("own:Own", rows=60, label=label, seed=s), "key": f"{label}{s}"} for s in (0, 1)]
    captions = re.findall(r"\\caption\{(.*)\}", render(make_tables(runs), "latex"))
    assert any(caption.startswith("own:Own with other parameters, ") for caption in captions)
    assert not any(".." in caption for caption in captions)
    assert any("Clearly: at the 5" in caption for caption in captions)


def test_latex_is_well_formed():
    runs = [record(m, [s / 10, -0.1], seed=s) for m in ("fedekd", "fedavg", "local", "my_method") for s in (0, 1)]
    runs += [record("fedekd", label="fedekd (beta=2.0)", params={"beta": 2.0}, seed=s) for s in (0, 1)]
    text = render(make_tables(runs, against_paper=True), "latex")
    assert not set(text) & set("Δαβλ±–½")
    bare = re.sub(r"\\[{}\\$&%_#]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert r"my\_method" in text
    for environment in ("table", "tabular"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") == 9
    for tabular in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        layout, body = tabular
        for line in body.split(r"\\"):
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            if "&" in line:
                assert line.count("&") - line.count(r"\&") + sum(spans) + 1 == len(layout)


def test_csv_holds_every_cell_unrounded():
    tables = make_tables([record(deltas=[1 / 3, 1 / 7])])
    rows = list(csv.DictReader(io.StringIO(render(tables, "csv"))))
    assert len(rows) == sum(len(row.cells) for table in tables for row in table.rows)
    assert max(float(row["mean"] or 0) for row in rows if row["table"] == "neg_transfer_main") == pytest.approx(5 / 21)


def test_unknown_table_and_format_are_named():
    with pytest.raises(FedekdError, match="unknown table 'harm_cls'; did you mean 'harmed_cls'"):
        select(make_tables([record()]), "harm_cls")
    tables = make_tables([record(dataset="retinamnist")])
    assert [t.name for t in select(tables, "harmed_reg")] == ["harmed_reg"]
    assert len(select(tables, "regression")) > 2
    with pytest.raises(FedekdError, match="unknown format 'mardown'; did you mean 'markdown'"):
        render([], "mardown")


def test_records_of_other_studies_have_only_their_own_columns_and_each_dataset_its_own_seeds():
    longer = {"rounds": 50, "lr": 1e-3}
    runs = [record(seed=seed, params=longer) for seed in (0, 1)] + [record(dataset="fashionmnist", params=longer)]
    table = table_of(make_tables(runs), "neg_transfer_main")
    assert set(cells(table, "fedekd")) == {"CIFAR-10 α=0.1", "FashionMNIST α=0.1"}
    assert not any(cell.few for cell in cells(table, "fedekd").values())
    assert not any("missing" in note for note in table.notes)
