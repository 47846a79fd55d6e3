"""The commands of docs/deployment.md, run in the order in which they stand there, for a server and two sites."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.flower.supervise.processes import Child, free_port, stop

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
STEPS = ["server init", "site init", "site schema", "server run", "site check", "site accept", "site run"]
SITES = ("north", "south")


def documented() -> dict[str, str]:
    """By step, the command that stands there, in the page's order."""
    section = PAGE.read_text().partition("## From nothing to the first round")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("fedekd ")]
    return {" ".join(line.split()[1:3]): line for line in lines}


def rows(seed: int) -> str:
    """A hospital's table."""
    draw = np.random.default_rng(seed)
    ages, sexes = draw.integers(30, 85, 60), draw.choice(["f", "m"], 60)
    ill = ["ill" if age + draw.normal(0, 9) > 57 else "well" for age in ages]
    lines = [f"{age},{sex},{y}" for age, sex, y in zip(ages, sexes, ill, strict=True)]
    return "\n".join(["age,sex,outcome", *lines]) + "\n"


class Hospitals:
    """A folder for each machine, in which its commands are given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps, self.address = folder, documented(), f"localhost:{free_port()}"
        self.children: list[Child] = []
        source = str(PAGE.parents[1] / "src")
        self.env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def command(self, step: str, name: str = "north") -> list[str]:
        """As documented, but for the address, the number of rounds and, as they share a machine, the sites' ports."""
        line = self.steps[step].replace("fed.example.org:8000", self.address).replace("--rounds 10", "--rounds 1")
        more = ["--port", str(free_port())] if step == "site init" else []
        return [*shlex.split(line.replace("north", name), comments=True)[1:], *more]

    def do(self, step: str, at: str) -> str:
        """In this process, as a new one would spend most of its time on imports."""
        told = io.StringIO()
        with contextlib.chdir(self.folder / at), contextlib.redirect_stdout(told):
            assert main(self.command(step, at)) == 0, told.getvalue()
        return told.getvalue()

    def start(self, step: str, at: str) -> Child:
        with contextlib.chdir(self.folder / at):
            line = [sys.executable, "-m", "fedekd", *self.command(step, at)]
            self.children.append(Child(at, line, self.folder / f"{at}.out", self.env))
        return self.children[-1]


def test_from_nothing_to_the_end(tmp_path):
    here = Hospitals(tmp_path)
    assert list(here.steps) == STEPS
    for seed, name in enumerate(("fed", *SITES)):
        (tmp_path / name).mkdir()
        if name in SITES:
            (tmp_path / name / "patients.csv").write_text(rows(seed))
    try:
        follow(here, tmp_path)
    finally:
        stop(here.children)


def follow(here: Hospitals, folder: Path) -> None:
    server = folder / "fed" / "fed"
    here.do("server init", "fed")
    for name in SITES:
        shutil.copy(server / "certificates" / "ca.crt", folder / name)
        here.do("site init", name)
        shutil.copy(folder / name / name / "keys" / f"{name}.pub", server / "nodes")
    here.do("site schema", "north")
    for place in (server, folder / "south"):
        shutil.copy(folder / "north" / "schema.json", place)
    assert '"sex=f"' in (server / "schema.json").read_text()
    told = here.do("site check", "south")
    assert "data         ok: all 60 rows fit schema.json" in told
    assert told.endswith("nothing wrong was found; not checked: connection, clock, admission\n"), (
        "there is no server yet"
    )

    running = here.start("server run", "fed")
    wait(lambda: "waiting up to" in "\n".join(running.lines()), 120, running)
    for name in SITES:
        assert here.do("site check", name).endswith("ready to join\n")
        here.do("site accept", name)
        here.start("site run", name)
    wait(lambda: running.code is not None, 240, *here.children)
    assert running.code == 0, running.lines()
    assert [line.split()[0] for line in running.lines() if line.split()[:1] and line.split()[0] in SITES] == [*SITES]
    wait(
        lambda: all(list((folder / name / name / "state").glob("*/signed.json")) for name in SITES), 30, *here.children
    )


def wait(condition, seconds: float, *children: Child) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "\n".join(line for child in children for line in child.lines()[-20:])
        time.sleep(0.3)
