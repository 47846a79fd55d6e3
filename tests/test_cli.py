"""The command line as a user types it: what it prints, how it ends, and that mistakes cost one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from fedekd import cli
from fedekd.commands.run import GROUPS
from fedekd.settings import Settings

SMALL = ["--rounds", "1", "--epochs", "1", "--dataset", "own.csv", "--target", "ill", "--clients-from", "hospital"]
FORCING = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Type a command in an empty folder: its exit status, what it printed, and what it complained of."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "own.csv")
    for name in FORCING:
        monkeypatch.delenv(name, raising=False)

    def type_in(*words: str) -> tuple[int, str, str]:
        try:
            status = cli.main(list(words))
        except SystemExit as done:
            status = int(done.code or 0)
        return status, *capsys.readouterr()

    return type_in


def write_table(path: Path) -> None:
    """Eighty patients of two hospitals: trained on in no time."""
    rows = [f"{k % 7},{k % 5},{'yes' if k % 3 else 'no'},{'NS'[k % 2]}" for k in range(80)]
    path.write_text("\n".join(["age,height,ill,hospital", *rows]))


def complaint(answer: tuple[int, str, str]) -> str:
    """The one line that a mistake costs."""
    status, out, err = answer
    assert status == 2
    assert "Traceback" not in err
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("loading ", "training "))]
    assert len(lines) == 1, err
    assert lines[0].startswith("fedekd: ")
    return lines[0]


def shell(*words: str, code: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words] if code else [sys.executable, "-m", "fedekd", *words]
    given = {key: value for key, value in os.environ.items() if key not in FORCING} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=given)


# Answers at once


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["methods"], ["data", "list"], ["run", "--help"]])
def test_quick_answers_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from fedekd.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pandas', 'sklearn', 'scipy', 'h5py', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = shell(*words, code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "\x1b" not in done.stdout


def test_help_names_every_setting(ask: Ask) -> None:
    status, out, _ = ask("run", "--help")
    assert status == 0
    for option in ("--dataset", "--batch-size", "--lambda-kd", "--clients-from", "--set", "--config", "--out"):
        assert option in out
    assert "(default: 0.1)" in out


def test_help_of_a_study_does_not_promise_the_defaults_of_a_run(ask: Ask) -> None:
    """What is not given is what the study's file says: `paper` has ten seeds, not seed 0."""
    _, out, _ = ask("study", "--help")
    said = " ".join(out.split())
    assert "or 0,3,5 (default: as in the study)" in said
    assert "(default: 0)" not in said


def test_the_options_of_a_run_stand_in_groups(ask: Ask) -> None:
    _, out, _ = ask("run", "--help")
    heads = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["options:", "data:", "reading tables:", "methods:", "training:", "output:"]
    assert {name for names in GROUPS.values() for name in names} == {f.name for f in fields(Settings)} - {"parameters"}


def test_no_command_shows_the_help(ask: Ask) -> None:
    for words in ([], ["data"]):
        status, out, _ = ask(*words)
        assert status == 0
        assert "usage: fedekd" in out


def test_version(ask: Ask) -> None:
    from fedekd import __version__

    assert ask("--version") == (0, f"fedekd {__version__}\n", "")


def test_methods(ask: Ask) -> None:
    status, out, _ = ask("methods")
    assert status == 0
    assert "lambda_kd=1.0" in out
    assert "fedtype-prox" in out


def test_data_list(ask: Ask) -> None:
    status, out, _ = ask("data", "list", "--data", "nowhere")
    assert status == 0
    assert "digits" in out
    assert "nowhere" in out


@pytest.mark.parametrize(("dataset", "groups"), [("digits", "by class"), ("diabetes", "by range of the target")])
def test_data_show(ask: Ask, dataset: str, groups: str) -> None:
    status, out, _ = ask("data", "show", dataset, "--clients", "4", "--alpha", "1", "--seed", "3")
    assert status == 0
    assert f"{dataset}, " in out
    assert "4 clients, Dirichlet alpha 1.0, seed 3" in out
    assert groups in out
    rows = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]


def test_data_show_tells_the_public_rows(ask: Ask) -> None:
    status, out, _ = ask("data", "show", "diabetes", "--public", "0.1", "--clients", "3")
    assert status == 0
    assert "diabetes, 398 rows, 3 clients, Dirichlet alpha 0.1, seed 0, 44 public rows besides" in out


# Running


def test_run_prints_clients_summary_and_place(ask: Ask, tmp_path: Path) -> None:
    status, out, err = ask("run", *SMALL, "--out", "here", "--methods", "fedekd,fedavg")
    assert status == 0
    assert "training 3 runs" in err
    assert "3/3 fedavg, seed 0: Avg Δ" in err
    for text in ("client", "local", "fedekd", "fedavg", "Avg", "Worst", "P10", "sent"):
        assert text in out
    assert re.search(r"^fedavg: \d+ of \d+ clients ", out, re.MULTILINE)
    assert "mean trust" in out
    assert "results of 3 runs in here/results.jsonl" in out
    assert "\x1b" not in out + err
    assert len((tmp_path / "here" / "results.jsonl").read_text().splitlines()) == 3
    again = ask("run", *SMALL, "--out", "here", "--methods", "fedekd,fedavg")
    assert again[:2] == (0, out)
    assert "nothing to train: 3 runs kept from earlier" in again[2]


def test_a_dry_run_trains_and_writes_nothing(ask: Ask, tmp_path: Path) -> None:
    status, out, _ = ask("run", *SMALL, "--out", "here", "--seeds", "0-1", "--methods", "fedavg", "--dry-run")
    assert status == 0
    assert out.startswith("own, the data's own sites, 2 seeds, 1 round of 1 epoch\n")
    rows = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if words}
    assert rows["local"][:2] == ["2", "0"]
    assert rows["fedavg"][3:] != rows["local"][3:] == ["0", "B"]
    assert "nothing was trained; without --dry-run: training 4 runs, into here" in out
    assert not (tmp_path / "here").exists()
    dealt = ask("run", *SMALL, "--partition", "iid", "--methods", "fedavg", "--dry-run")[1]
    assert dealt.startswith("own, dealt out evenly, 1 seed, 1 round of 1 epoch\n")
    assert ask("run", *SMALL, "--out", "here", "--methods", "fedavg")[0] == 0
    assert "training 2 runs; 2 kept from earlier" in ask(
        "run", *SMALL, "--out", "here", "--seeds", "0-1", "--methods", "fedavg", "--dry-run"
    )[1]  # fmt: skip


def test_a_terminal_without_a_true_minus_still_shows_one() -> None:
    code = "from fedekd.cli import main\nmain(['watch', 'x', '--timeout=nan'])\nprint('\u22121.5 \u0394')"
    assert shell(code=code, PYTHONIOENCODING="latin-1").stdout == "-1.5 ?\n"


def test_several_seeds(ask: Ask) -> None:
    words = ["run", *SMALL, "--methods", "fedavg", "--seeds", "0-1", "--quiet"]
    status, out, err = ask(*words)
    assert (status, err) == (0, "")
    assert "±" in out
    assert "interval" in out
    assert "should a client join? of 4 client-runs: " in out
    assert "n train" not in out
    assert "\nseed 1" in ask(*words, "--show-clients")[1]


def test_as_a_user_types_it(tmp_path: Path) -> None:
    small = ["--dataset", "diabetes", "--rounds", "1", "--epochs", "1", "--methods", "fedavg"]
    words = ["run", *small, "--out", str(tmp_path / "results")]
    done = shell(*words, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "\x1b[3" not in done.stdout
    assert "Traceback" not in done.stderr
    coloured = shell(*words, "--no-report", FORCE_COLOR="1", TERM="xterm")
    assert "\x1b[3" in coloured.stdout


# Settings from a file


def test_config_file_under_the_command_line(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("""
        methods = ["fedekd", "fedprox"]
        rounds = 7
        epochs = 1
        batch-size = 256
        dataset = "own.csv"
        target = "ill"
        clients-from = "hospital"
        out = "there"
        parameters.fedprox.mu = 0.5
        parameters.fedekd = {beta = 3, lambda_kd = 2}
        """)
    words = ["--config", "study.toml", "--rounds", "1", "--beta", "5", "--set", "fedprox.mu=0.25"]
    status, _, err = ask("run", *words)
    assert status == 0, err
    records = [json.loads(line) for line in (tmp_path / "there" / "results.jsonl").read_text().splitlines()]
    by_method = {r["method"]: r["params"] for r in records}
    assert by_method["fedekd"]["rounds"] == 1
    assert by_method["fedekd"]["batch_size"] == 256
    assert by_method["fedekd"]["beta"] == 5.0
    assert by_method["fedekd"]["lambda_kd"] == 2.0
    assert by_method["fedprox"]["mu"] == 0.25


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("rounds = = 3", "not valid TOML"),
        ("ruonds = 3", "unknown setting 'ruonds'; did you mean 'rounds'?"),
        ("parameters = 3", "[parameters.fedekd]"),
        ("parameters.fedekd = 3", "[parameters.fedekd]"),
        ("rounds = 2.5", "rounds must be a whole number"),
        ("rounds = true", "rounds must be a whole number"),
        ("[parameters.fedekd]\nbetta = 1", "did you mean 'beta'?"),
        ("[parameters.fedprox]\nmu = 1", "fedprox"),
    ],
)
def test_bad_config(ask: Ask, tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "bad.toml").write_text(content)
    assert part in complaint(ask("run", "--config", "bad.toml"))


def test_missing_config(ask: Ask) -> None:
    assert "cannot read none.toml" in complaint(ask("run", "--config", "none.toml"))


# Mistakes


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("rnu", "unknown command 'rnu'; did you mean 'run'?"),
        ("data lst", "did you mean 'list'?"),
        ("figures DIR --format gif", "unknown --format 'gif'; known: pdf, png, svg"),
        (f"report {__file__}", "is not a folder; give the one that a run or a study wrote"),
        (f"watch {__file__} --once", "is not a folder; give the one that a run or a study writes"),
        ("run --alhpa 0.1", "unknown option '--alhpa'; did you mean '--alpha'?"),
        ("run --alhpa=0.1", "did you mean '--alpha'?"),
        ("run --round 3", "did you mean '--rounds'?"),
        ("methods --sed 3", "unknown option '--sed'"),
        ("run digits", "unexpected argument 'digits'"),
        ("run --alpha", "--alpha: expected one argument"),
        ("run --alpha much", "invalid float value: 'much'"),
        ("run --rounds 1.5", "invalid int value: '1.5'"),
        ("run --alpha 0", "alpha must be a number > 0, got 0.0"),
        ("run --alpha nan", "alpha must be a number > 0"),
        ("run --lr -1", "lr must be a number > 0"),
        ("run --rounds 0", "rounds must be a whole number >= 1, got 0"),
        ("run --batch-size -5", "batch_size must be"),
        ("run --clients 1", "clients must be"),
        ("run --clients 1000", "1000 clients"),
        ("run --seeds 9-x", "seeds must look like"),
        ("run --seeds 5-1", "no seeds"),
        ("run --seeds -1", "seeds must look like"),
        ("run --methods fedkd", "unknown method 'fedkd'; did you mean 'fedekd'?"),
        ("run --methods ,", "no methods given"),
        ("run --methods nowhere.module:Method", "cannot import method"),
        ("run --dataset digts", "did you mean 'digits'?"),
        ("run --dataset nothing.csv", "nothing.csv"),
        ("run --dataset digits --target y", "--target"),
        ("run --dataset octmnist --data nowhere", "fedekd data fetch octmnist"),
        ("run --energy kll", "unknown energy 'kll'; did you mean 'kl'?"),
        ("run --dataset diabetes --energy kl", "not defined for regression"),
        ("run --dataset diabetes --methods fedtype", "not for regression"),
        ("run --beta 0", "fedekd.beta must be > 0"),
        ("run --lambda-kd -1", "fedekd.lambda_kd must be >= 0"),
        ("run --set fedekd.beta=-1", "fedekd.beta must be > 0"),
        ("run --set fedekd.beta=big", "fedekd.beta must be a number"),
        ("run --set fedekd.betta=1", "did you mean 'beta'?"),
        ("run --set fedprox.mu=1", "fedprox"),
        ("run --set beta=1", "--set takes METHOD.PARAMETER=VALUE"),
        ("run --set fedekd.beta", "--set takes METHOD.PARAMETER=VALUE"),
        ("run --partition iit", "did you mean 'iid'?"),
        ("run --partition sites", "sites"),
        ("run --device gpu --rounds 1", "device"),
        ("run --precision fp16", "unknown precision 'fp16'"),
        ("run --private nowhere:f", "nowhere"),
        ("run --out /proc/none", "cannot write /proc/none"),
        ("data fetch octmist --data here", "did you mean 'octmnist'?"),
        ("data fetch", "required: NAME"),
        ("data show digts", "did you mean 'digits'?"),
        ("data show digits --clients 1", "clients must be"),
        ("data show digits --seed x", "invalid int value: 'x'"),
        ("data show digits --public 1", "public must be a share > 0 and < 1"),
        ("run --public none.npz", "public must be a share such as 0.1 or a file that is there, got 'none.npz'"),
        ("run --public 0.99", "with 1779 of 1797 rows public: 18 rows cannot give 6 clients 10 rows each"),
        ("run --participation 0", "participation must be a number > 0 and <= 1"),
        ("run --split-seed -1", "split_seed must be a whole number >= 0"),
        ("run --split-seed x", "invalid int value: 'x'"),
        ("run --weight-decay -1", "weight_decay must be a number >= 0"),
        ("run --lr-schedule cosin", "did you mean 'cosine'?"),
        ("run --augment flip", "did you mean 'flip-crop'?"),
        ("run --dataset diabetes --augment flip-crop", "'diabetes' is a table, which cannot be flipped and cropped"),
        ("run --fraction 0", "fraction must be a number > 0 and <= 1"),
        ("run --fraction 1.1", "fraction must be a number > 0 and <= 1"),
        ("data show digits --fraction 2", "fraction must be a number > 0 and <= 1"),
        ("run --optimizer momentun", "did you mean 'momentum'?"),
    ],
)
def test_mistakes_cost_one_line(ask: Ask, words: str, part: str) -> None:
    assert part in complaint(ask(*words.split()))


def test_a_file_in_the_way_of_the_results(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    assert "cannot write taken" in complaint(ask("run", *SMALL, "--out", "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


def test_results_that_are_not_results(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.jsonl").write_text("not json\n")
    assert "is not JSON" in complaint(ask("run", *SMALL, "--out", "old"))


# How it ends


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let every run end with an exception."""

    def arrange(error: BaseException) -> None:
        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr("fedekd.runs.runner.run", run)

    return arrange


def test_interrupted(ask: Ask, failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    assert ask("run") == (130, "", "loading digits\ninterrupted; the same command continues where it stopped\n")


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "x.npz"), "x.npz: Permission denied"),
    ],
)
def test_what_the_machine_refuses(
    ask: Ask, failing: Callable[[BaseException], None], error: BaseException, part: str
) -> None:
    failing(error)
    assert part in complaint(ask("run"))


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("bug")])
def test_bugs_keep_their_traceback(ask: Ask, failing: Callable[[BaseException], None], error: Exception) -> None:
    failing(error)
    with pytest.raises(type(error)):
        ask("run")


@pytest.mark.parametrize("words", [["methods"], ["--help"]])
def test_broken_pipe_is_silent(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "fedekd", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_full_output_device() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedekd", "methods"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["fedekd: No space left on device"]


def test_ascii_terminals_do_without() -> None:
    done = shell("data", "show", "digits", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout
