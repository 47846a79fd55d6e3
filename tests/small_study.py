"""A small study on small data with small models, and what the tests do with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedekd
from fedekd.data import load_dataset

PARTS = '''
"""Models and methods for the tests, importable by worker processes."""
import os, time
from dataclasses import dataclass
from fedekd.methods.fedavg import FedAvg
from fedekd.methods.local import Local
from fedekd.models import MLP

def private(shape, outputs):
    return MLP(shape[0], outputs, (8,))

def proxy(shape, outputs):
    return MLP(shape[0], outputs, (4,))

@dataclass(frozen=True)
class Fragile(FedAvg):
    """Fails on seed 1, unless in the dry pass, whose clients have five rows at most"""
    def begin(self, client):
        if client.seed == 1 and len(client.targets) > 5:
            raise RuntimeError("this seed is cursed")
        return super().begin(client)

@dataclass(frozen=True)
class Deadly(FedAvg):
    """Takes its process down, unless in the dry pass, whose clients have five rows at most"""
    def begin(self, client):
        if len(client.targets) > 5:
            os._exit(7)
        return super().begin(client)

@dataclass(frozen=True)
class Slow(FedAvg):
    """Leaves time to be interrupted in"""
    def steps(self, round):
        time.sleep(0.05)
        return super().steps(round)
'''

STUDY = """
seeds = "0-1"
rounds = 2
epochs = 1
clients = 3
private = "studyparts:private"
proxy = "studyparts:proxy"

[[block]]
dataset = "DIGITS"
alpha = [0.3, 0.5]
methods = ["fedekd", "fedavg"]

[[block]]
name = "beta"
dataset = "DIGITS"
alpha = 0.5
methods = ["fedekd"]
vary.fedekd.beta = [0.5, 1, 2]

[[block]]
dataset = "PATIENTS"
alpha = 0.5
methods = ["fedekd", "constant"]
"""
RUNS = 2 * (3 + 3 + 2 + 3)  # seeds; Local and two methods at each alpha, two new betas; Local and two on patients


def make_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, models and ``study.toml``, which is the current one and on the import path."""
    digits, patients = load_dataset("digits"), load_dataset("diabetes")
    np.savez(tmp_path / "digits-small.npz", x=digits.x[:180].reshape(180, -1).astype(np.float32), y=digits.y[:180])
    np.savez(tmp_path / "patients.npz", x=patients.x[:150], y=patients.y[:150])
    (tmp_path / "studyparts.py").write_text(PARTS)
    text = STUDY.replace("DIGITS", str(tmp_path / "digits-small.npz")).replace(
        "PATIENTS", str(tmp_path / "patients.npz")
    )
    (tmp_path / "study.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDEKD_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "studyparts", raising=False)
    return tmp_path


def start(home: Path, code: str) -> subprocess.Popen:
    """Python code in a process of its own, of one thread."""
    paths = (str(home), str(Path(fedekd.__file__).parents[1]))
    given = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    text = "import torch; torch.set_num_threads(1)\n" + code
    return subprocess.Popen([sys.executable, "-c", text], cwd=home, env=given, stderr=subprocess.PIPE, text=True)
