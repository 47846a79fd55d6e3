"""What a user reads after a run, on records made up for the purpose."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fedekd.report.terminal import print_result
from fedekd.runs.results import RunResults

Make = Callable[..., Any]


def text_of(result: RunResults, width: int = 100, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_result(console, result, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


def ansi_of(result: RunResults) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard", no_color=False)
    print_result(console, result)
    return console.file.getvalue()  # type: ignore[attr-defined]


def row(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(start)).split()


def test_one_seed_shows_every_client(record: Make) -> None:
    text = text_of(RunResults([record("local"), record("fedekd")]), folder="out")
    assert row(text, "0 ") == ["0", "100", "30", "90.0", "95.0", "+5.0"]
    assert row(text, "1 ")[-1] == "0.0"
    assert row(text, "2 ") == ["2", "102", "32", "86.4", "85.2", "-1.2"]
    assert row(text, "fedekd ") == ["fedekd", "+1.6", "-1.2", "-0.6", "1/6", "87.1", "84.0", "2.5", "MB", "12", "s"]
    assert "fedekd: 4 of 6 clients helped, 1 harmed; worst client 2 loses 1.2 points" in text
    assert "results of 2 runs in out/results.jsonl" in text


def test_rmse_reads_the_other_way_round(record: Make) -> None:
    deltas = [1.5, -2.0, 0.0]
    records = [record(m, deltas, local=55.0, metric="rmse") for m in ("local", "fedekd")]
    text = text_of(RunResults(records))
    assert "1 of 3 clients helped, 1 harmed; worst client 0: RMSE up by 1.50" in text
    assert "P90" in text
    assert "P10" not in text
    assert row(text, "fedekd ")[1:4] == ["-0.17", "+1.50", "+1.20"]
    ansi = ansi_of(RunResults(records))
    assert "\x1b[31m+1.50" in ansi
    assert "\x1b[32m-2.00" in ansi
    assert "\x1b[2m 0.00" in ansi


def test_accuracy_colours(record: Make) -> None:
    ansi = ansi_of(RunResults([record("local"), record("fedekd")]))
    assert "\x1b[32m+5.0" in ansi
    assert "\x1b[31m-1.2" in ansi


def test_no_harm_and_no_change(record: Make) -> None:
    records = [record("local"), record("fedekd", [0.1] * 6), record("fedavg", [0.0] * 6)]
    text = text_of(RunResults(records))
    assert "fedekd: 6 of 6 clients helped, none harmed" in text
    assert "fedavg: 0 of 6 clients helped, none harmed" in text


def test_several_seeds_are_summed_up(result: Make) -> None:
    text = text_of(result(methods=2, seeds=5), width=140)
    assert "n train" not in text
    assert "5 seeds" in text
    assert "95 % interval" in text
    assert " ± " in row_text(text, "fedekd ")
    assert "/30" in row_text(text, "fedekd ")
    assert "of 30 client-runs helped" in text
    assert "of seed" in text


def row_text(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_interval_is_put_in_words(record: Make) -> None:
    records = []
    for seed in range(3):
        records += [
            record("local", seed=seed),
            record("good", [0.1 + seed / 1000] * 6, seed=seed),
            record("bad", [-0.1 - seed / 1000] * 6, seed=seed),
            record("open", [0.1 * (seed - 1)] * 6, seed=seed),
        ]
    text = text_of(RunResults(records))
    assert row_text(text, "good:").endswith("on average it helps")
    assert row_text(text, "bad:").endswith("on average it harms")
    assert row_text(text, "open:").endswith("on average it makes no clear difference")


def test_clients_of_several_seeds_on_demand(result: Make) -> None:
    text = text_of(result(seeds=2), show_clients=True)
    assert text.count("client  train") == 2
    assert "\nseed 1" in text


def test_trust_of_gated_methods(result: Make, record: Make) -> None:
    text = text_of(result(methods=2))
    assert "fedekd: mean trust 0.41 in round 1, 0.50 in round 10  0| ▂▅█▅▂|1" in text
    assert "fedavg: mean trust" not in text
    ungated = record("fedekd-ungated", trust=True)
    for entry in ungated["trust"]:
        entry["std"] = 0.0
    assert "mean trust" not in text_of(RunResults([record("local"), ungated]))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize(("methods", "seeds"), [(8, 1), (8, 3), (1, 1), (0, 1)])
def test_no_table_is_wider_than_the_terminal(result: Make, width: int, methods: int, seeds: int) -> None:
    made = result(methods=methods, seeds=seeds)
    text = text_of(made, width=width, show_clients=True)
    tables = [line for line in text.splitlines() if line and ":" not in line and "alpha" not in line]
    assert max(len(line) for line in tables) <= width
    for record in made.records:
        for client in record["clients"]:
            assert f"{100 * client['value']:.1f}" in text  # nothing was cut off


def test_wide_terminals_need_one_table(result: Make) -> None:
    assert text_of(result(methods=8), width=140).count("client  train") == 1
    assert text_of(result(methods=8), width=80).count("client  train") == 2


def test_long_labels_and_names_fold(record: Make) -> None:
    records = [record("local"), record("fedekd", label="fedekd (beta=2.0, lambda_kd=0.5, energy=margin)")]
    for client in (c for r in records for c in r["clients"]):
        client["id"] = f"University Hospital of Somewhere [north] {client['id']}"
    text = text_of(RunResults(records), width=80)
    assert "[north]" in text
    assert max(len(line) for line in text.splitlines() if "clients helped" not in line) <= 90


def test_datasets_are_kept_apart(record: Make) -> None:
    records = [record("local"), record("fedekd"), record("local", metric="rmse"), record("fedekd", metric="rmse")]
    text = text_of(RunResults(records))
    assert "digits, alpha 0.1" in text
    assert "diabetes, alpha 0.1" in text


def test_partitions_without_an_alpha(record: Make) -> None:
    records = [record("local"), record("fedekd")]
    for r in records:
        r |= {"alpha": None, "partition": {"kind": "sites", "clients": 6}}
    assert text_of(RunResults(records)).startswith("\ndigits, the data's own sites, 6 clients, seed 0")


def test_nothing_to_show() -> None:
    assert text_of(RunResults([])) == ""
