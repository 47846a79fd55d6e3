"""Methods and seeds side by side in processes: the same records, files and lines as one after another."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import fedekd
import small_study
from fedekd import cli
from fedekd.data import load_dataset
from fedekd.errors import FedekdError
from fedekd.runs import details
from fedekd.runs.progress_file import condition, read
from fedekd.runs.runner import ENOUGH_PASSES, _passes, _worth_processes
from fedekd.settings import make_settings
from repeats import numbers_in

PARTS = f'''{small_study.PARTS}
@dataclass(frozen=True)
class Cursed(FedAvg):
    """Fails, unless in the dry pass, whose clients have five rows at most"""
    def begin(self, client):
        if len(client.targets) > 5:
            raise RuntimeError("it is cursed")
        return super().begin(client)
'''
MODELS = {"private": "sideparts:private", "proxy": "sideparts:proxy"}
SMALL = {"methods": "fedekd,fedavg", "rounds": 2, "epochs": 1, **MODELS}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sideparts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sideparts", raising=False)
    return tmp_path


def run(out: str, **given):
    return fedekd.run("heart", progress=False, out=out, **{**SMALL, **given})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("models/*/*")}


def test_they_leave_what_one_process_leaves(home, capsys):
    line = ["run", "--dataset", "heart", "--seeds", "0-1", "--no-report", "--models", "all"]
    line += [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    assert cli.main([*line, "--workers", "2", "--out", "two"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("loading heart\ntraining 6 runs\n1/6 local, seed ")
    ended = re.findall(r"^(\d)/6 (\w+), seed (\d): ", err, re.M)
    assert [int(number) for number, *_ in ended] == [1, 2, 3, 4, 5, 6]
    assert {(name, seed) for _, name, seed in ended} == {(n, s) for n in ("local", "fedekd", "fedavg") for s in "01"}
    assert cli.main([*line, "--workers", "1", "--out", "one"]) == 0
    assert numbers_in(home / "two") == numbers_in(home / "one")
    assert files(home / "two") == files(home / "one")
    keys = set(numbers_in(home / "one"))
    assert details.read(home / "two", keys) == details.read(home / "one", keys)
    assert re.sub("[0-9.]+ s|two/", "", out) == re.sub("[0-9.]+ s|one/", "", capsys.readouterr().out)
    seen = read(home / "two")
    assert (condition(seen), seen["ended"], seen["now"], len(seen["finished"])) == ("done", 6, [], 6)
    assert not list(home.glob("two/checkpoints/*"))
    assert multiprocessing.active_children() == []


def test_what_is_finished_is_kept_and_what_is_missing_is_measured_against_it(home):
    run("two", methods="fedekd", seeds="0")
    first = numbers_in(home / "two")
    assert [r["label"] for r in run("two", seeds="0-1", workers=2).records] == ["local", "fedekd", "fedavg"] * 2
    run("one", seeds="0-1")
    assert numbers_in(home / "two") == numbers_in(home / "one")
    assert first.items() <= numbers_in(home / "two").items()


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"methods": "fedavg,fedekd", "lr": 1e30}, FedekdError, "diverged in round 1; lower --lr"),
        ({"methods": "fedavg,sideparts:Cursed"}, RuntimeError, "it is cursed"),
        ({"methods": "fedavg,sideparts:Deadly"}, FedekdError, "sideparts:Deadly: its process ended with status 7"),
    ],
)
def test_the_first_error_ends_it(home, given, kind, words):
    with pytest.raises(kind, match=words) as caught:
        run("out", workers=2, **given)
    assert multiprocessing.active_children() == []
    if kind is RuntimeError:
        assert "in begin" in "".join(caught.value.__notes__), "where in the worker"


def test_what_cannot_be_sent_is_said(home):
    with pytest.raises(FedekdError, match="use workers=1"):
        run("out", workers=2, private=lambda shape, outputs: None or sys.modules["sideparts"].private(shape, outputs))


def test_interrupted_it_says_one_line_and_goes_on_later(home):
    line = [sys.executable, "-m", "fedekd", "run", "--dataset", "heart", "--workers", "2", "--out", "out", "--quiet"]
    line += ["--methods", "fedavg,fml", "--rounds", "3000", "--private", MODELS["private"], "--proxy", MODELS["proxy"]]
    given = os.environ | {"PYTHONPATH": str(Path(fedekd.__file__).parents[1])}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs are deaf to it
    with subprocess.Popen(
        line, env=given, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard
    ) as process:
        try:
            while not list(home.glob("out/checkpoints/*.pt")):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "interrupted; the same command continues where it stopped\n")
    assert condition(read(home / "out")) == "interrupted"
    assert list(home.glob("out/checkpoints/*.pt"))
    deadline = time.monotonic() + 30
    while [line for line in _commands() if "--multiprocessing-fork" in line[1] and line[0] == process.pid]:
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.1)


def _commands() -> list[tuple[int, str]]:
    """The session and the command line of every process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
            found.append((int(stat.rpartition(")")[2].split()[3]), (path / "cmdline").read_text().replace("\0", " ")))
        except OSError:
            continue
    return found


def test_processes_are_started_where_there_is_much_to_do(home):
    hospitals = {"dataset": "heart", "methods": "fedekd,fml", "seeds": "0-2", "rounds": 20}
    assert _passes(make_settings(hospitals)) >= ENOUGH_PASSES
    assert _passes(make_settings({"dataset": "digits"})) < ENOUGH_PASSES
    from fedekd.runs.plan import plan

    small, large = plan(make_settings(hospitals)), plan(make_settings({"batch_size": 1024}))
    assert load_dataset("digits").x.shape[1:] == (1, 8, 8)
    assert _worth_processes(small, 16)
    assert not _worth_processes(small[:1], 2)
    assert not _worth_processes(large, 16), "threads do more"
    assert _worth_processes(large, 2)
