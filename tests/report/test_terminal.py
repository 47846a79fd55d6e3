"""What a user reads after a run, on records made up for the purpose."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fedekd.report.terminal import print_result
from fedekd.runs.results import RunResults
from fedekd.units import BAD, GOOD

Make = Callable[..., Any]


def text_of(result: RunResults, width: int = 100, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_result(console, result, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


def ansi_of(result: RunResults) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor", no_color=False)
    print_result(console, result)
    return console.file.getvalue()  # type: ignore[attr-defined]


def painted(colour: str) -> str:
    return "\x1b[38;2;" + ";".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5)) + "m"


def row(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(start)).split()


def test_one_seed_shows_every_client(record: Make) -> None:
    text = text_of(RunResults([record("local"), record("fedekd")]), folder="out")
    assert row(text, "0 ") == ["0", "100", "30", "90.0", "95.0", "+5.0"]
    assert row(text, "1 ")[-1] == "0.0"
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("client")] == [["with", "Δ"]]
    assert row(text, "2 ") == ["2", "102", "32", "86.4", "85.2", "−1.2"]
    assert row(text, "fedekd ") == ["fedekd", "+1.6", "1/6", "−1.2", "−0.6", "87.1", "84.0", "2.5", "MB", "12", "s"]
    assert "fedekd: 1 of 6 clients harmed by sign alone" in text
    assert "do not hold the test rows" in text
    assert "results of 2 runs in out/results.jsonl" in text


def test_rmse_reads_the_other_way_round(record: Make) -> None:
    deltas = [1.5, -2.0, 0.0]
    records = [record(m, deltas, local=55.0, metric="rmse") for m in ("local", "fedekd")]
    text = text_of(RunResults(records))
    assert "fedekd: 1 of 3 clients harmed by sign alone" in text
    assert "RMSE (lower is better)" in text
    assert "P90" in text
    assert "P10" not in text
    assert row(text, "fedekd ")[1:5] == ["−0.17", "1/3", "+1.50", "+1.20"]
    worse = [record(m, [8.0] * 3, local=55.0, metric="rmse", rows=200) for m in ("local", "fedekd")]
    assert "fedekd: 3 of 3 clients clearly harmed" in (text := text_of(RunResults(worse)))
    assert "  0: stay alone: with fedekd its RMSE is 8.00 worse than alone (local), 95 % interval +" in text


def test_the_four_states_and_what_a_client_should_do(record: Make) -> None:
    deltas = [0.05, -0.05, 0.002, -0.002]
    text = text_of(RunResults([record(m, deltas, rows=2000) for m in ("local", "fedekd")]))
    assert "fedekd: 1 of 4 clients clearly harmed, 1 clearly helped, 2 equivalent\n" in text
    assert "  mean over clients: Δ against Local 0.0 [−0.3 to +0.3]\n" in text
    table = text[text.index("95 % interval") :]
    assert " ".join(row(table, "0 ")) == "0 2,000 90.0 95.0 +5.0 +4.1 to +6.0 0.6 clearly helped"
    assert row(table, "1 ")[-2:] == ["clearly", "harmed"]
    assert row(table, "2 ")[-1] == row(table, "3 ")[-1] == "equivalent"
    assert "  0: join: with fedekd its accuracy is 5.0 points better than alone (local), 95 % interval" in text
    assert "  1: stay alone: with fedekd its accuracy is 5.0 points worse than alone (local)" in text
    assert "  2: stay alone: with fedekd it is within 2.0 points of alone (local): nothing is gained" in text
    assert "Compared with plain Local; --alone menu compares with" in text
    assert "One seed tells you about these trained models, not about the method" in text
    assert "assumed independent" in text


def test_one_seed_has_an_interval_over_test_rows(record: Make) -> None:
    """Of every line but Local's, without colour: it says nothing of the method."""
    records = [record(m, [0.05, 0.03, 0.04], rows=500) for m in ("local", "fedekd", "fedekd@alone")]
    text = text_of(RunResults(records))
    table = text[text.index("95 % interval") :]
    for name in ("fedekd ", "fedekd@alone "):
        assert row(table, name)[1:5] == ["+4.0", "+3.0", "to", "+5.0"]
    assert "to" not in row(table, "local ")
    assert "the interval is over test rows: it is about these trained models, not about the method" in text
    assert "Δ against Local +4.0 [+3.0 to +5.0] (recipe +4.0 [+3.0 to +5.0], federation 0.0 [" in text
    assert f"{painted(GOOD)}+3.0 to +5.0" not in ansi_of(RunResults(records))


def test_few_rows_decide_nothing(record: Make) -> None:
    """The deltas are those of the first test, but of 30 rows: one or two of them changed."""
    text = text_of(RunResults([record(m, rows=30) for m in ("local", "fedekd")]))
    assert "fedekd: 6 of 6 clients undecided\n" in text
    assert "  0: undecided: with fedekd its accuracy is 6.7 points above alone (local), which may be chance" in text
    assert "; 2.0 points would take about " in text
    tiny = text_of(RunResults([record(m, rows=4) for m in ("local", "fedekd")]))
    assert "undecided: only 4 test rows, and nothing is said of fewer than 5" in tiny


def test_only_what_is_clear_has_a_colour(record: Make) -> None:
    ansi = ansi_of(RunResults([record(m, [0.05, -0.05, 0.001], rows=2000) for m in ("local", "fedekd")]))
    assert f"{painted(GOOD)}clearly helped" in ansi
    assert f"{painted(BAD)}clearly harmed" in ansi
    for records in ([record("local"), record("fedekd")], [record(m, rows=30) for m in ("local", "fedekd")]):
        text = ansi_of(RunResults(records))
        assert painted(GOOD) not in text
        assert painted(BAD) not in text


def test_what_is_done_alone_is_no_method_that_helps_or_harms(record: Make) -> None:
    names = ("local", "local-smooth", "fedekd", "fedekd@alone", "fedekd@shuffled")
    text = text_of(RunResults([record(name, rows=100) for name in names]))
    assert re.findall(r"^(\S+): \d+ of 6 clients ", text, re.MULTILINE) == ["fedekd"]
    for name in names:
        assert row(text, f"{name} ")
    assert "Alone: the best of local, local-smooth, fedekd@alone, chosen for each client" in text
    assert "recipe" in text


def test_a_split_of_every_seeds_own_has_verdicts_by_client_run(record: Make) -> None:
    dealt = [record(m, [0.05] * 3, rows=2000, seed=seed) for seed in range(3) for m in ("local", "fedekd")]
    text = text_of(RunResults(dealt))
    assert "fedekd: 9 of 9 client-runs clearly helped" in text
    assert "should a client join? of 9 client-runs: 9 should join, 0 should stay alone, 0 are undecided" in text
    assert "client 3 has other rows in each" in text
    assert "--split-seed 0" in text
    assert "[" in row_text(text, "  mean over clients: Δ against Local +5.0")
    for one in dealt:
        one["partition"] |= {"seed": 0, "fixed": True, "fingerprint": "0f"}
    held = text_of(RunResults(dealt))
    assert "fedekd: 3 of 3 clients clearly helped" in held
    assert "  0: join: " in held
    assert "the same on all 3 seeds" in held


def test_several_seeds_are_summed_up(result: Make) -> None:
    text = text_of(result(methods=2, seeds=5), width=140)
    assert "n train" not in text
    assert "5 seeds" in text
    assert "95 % interval" in text
    assert " ± " in row_text(text, "fedekd ")
    assert "/30" in row_text(text, "fedekd ")
    assert "of 30 client-runs harmed by sign alone; on average it" in text


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
    assert row_text(text, "open:").endswith("3 seeds are too few to tell whether it helps on average")
    records += [record(m, [0.1 * (-1) ** seed] * 6, seed=seed) for seed in (3, 4) for m in ("local", "open")]
    assert row_text(text_of(RunResults(records)), "open:").endswith("on average it makes no clear difference")


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
    made = result(methods=methods, seeds=seeds, rows=50)
    text = text_of(made, width=width, show_clients=True)
    tables = [
        line for line in text.splitlines() if line and line[-1] != "." and ":" not in line and "alpha" not in line
    ]
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
    assert max(len(line) for line in text.splitlines() if ":" not in line and "rows" not in line) <= 90


def test_datasets_are_kept_apart(record: Make) -> None:
    records = [record("local"), record("fedekd"), record("local", metric="rmse"), record("fedekd", metric="rmse")]
    text = text_of(RunResults(records))
    assert "digits, alpha 0.1" in text
    assert "diabetes, alpha 0.1" in text


def test_partitions_without_an_alpha(record: Make) -> None:
    records = [record("local"), record("fedekd")]
    for r in records:
        r |= {"alpha": None, "partition": {"kind": "sites", "clients": 6, "fingerprint": "0f"}}
    assert text_of(RunResults(records)).startswith("\ndigits, the data's own sites, 6 clients, seed 0")


def test_nothing_to_show() -> None:
    assert text_of(RunResults([])) == ""


def test_a_folded_line_of_advice_is_indented(record: Make) -> None:
    """Or one cannot see where the next client begins."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_result(console, RunResults([record(m, rows=30) for m in ("local", "fedekd")]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    advice = lines[next(i for i, line in enumerate(lines) if line.startswith("  0: undecided: ")) :]
    advice = advice[: advice.index("")]
    assert len(advice) > 6
    assert sum(re.match(r"  \d: ", line) is not None for line in advice) == 6
    assert all(re.match(r"  \d: |    \S", line) and len(line) <= 80 for line in advice)


def test_who_is_helped_and_who_is_harmed_stand_in_one_table_at_80_columns(record: Make) -> None:
    names = ("local", "local-smooth-quarter", "second-opinion", "second-opinion@alone")
    runs = [record(name, rows=100, seed=seed) for seed in range(3) for name in names]
    heads = [line for line in text_of(RunResults(runs), width=80).splitlines() if "clearly" in line and ":" not in line]
    assert len(heads) == 1
    assert heads[0].split() == ["clearly", "clearly"]
