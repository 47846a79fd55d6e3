"""What importing costs: the core needs torch and numpy alone, and listings do not wait for torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBID = '''
import sys

FORBIDDEN = {"sklearn", "scipy", "pandas", "rich", "pooch", "h5py", "PIL", "tqdm", "matplotlib", "flwr"}

class Without:
    """A finder that does not find what is forbidden, as if it were not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in FORBIDDEN else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
try:
    import scipy
except ModuleNotFoundError:
    pass
else:
    sys.exit("scipy can still be imported")
'''

TRAIN = """
from dataclasses import replace

import numpy as np
from fedekd import methods
from fedekd.data import Dataset, federate
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked

draw = np.random.default_rng(0)
x = draw.normal(size=(90, 3)).astype(np.float32)
for task, y, outputs in (("classification", (x[:, 0] > 0).astype(int), 2), ("regression", x[:, 0], 1)):
    dataset = Dataset("own", task, x, y, outputs, scale=None)
    for partition in ("iid", "dirichlet") if task == "classification" else ("iid",):
        federation = federate(dataset, clients=2, alpha=5.0, partition=partition)
        federation = replace(federation, public=np.arange(9))
        names = [n for n, m in methods.known().items() if task in m.tasks and m.roles and "-" not in n]
        for name in names:
            job = Job(federation, methods.get(name), 0, Training(1, 1, 32, 1e-3))
            engine = Serial(job)
            engine.round()
            assert len(engine.evaluate()[0]) == 2
        stack = Stacked([job])
        stack.round()
        stack.evaluate()
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_core_trains_with_torch_and_numpy_alone():
    modules = (
        "gate",
        "conformal",
        "tasks",
        "models",
        "trees",
        "rng",
        "exchange",
        "federation",
        "settings",
        "metrics",
        "runs.store",
        "runs.results",
        "methods",
        "data",
        "engines",
        "engines.fused_conv",
        "engines.schedule",
    )
    run("\n".join([FORBID, *(f"import fedekd.{name}" for name in modules), TRAIN]))


def test_training_does_not_wait_for_compilers(tmp_path):
    """torch's optimisers and torch.func.grad import torch._dynamo, seconds of every start, and our kernels Triton."""
    names = "fedekd,fedavg,pfedhr,perfedavg,pfedme"
    given = f"methods={names!r}, public=0.1, rounds=1, epochs=1, out={str(tmp_path)!r}, progress=False"
    compilers = "{'torch._dynamo', 'triton', 'fedekd.engines.row_kernels'}"
    run(f"import fedekd, sys\nfedekd.run('heart', {given})\nassert not {compilers} & sys.modules.keys()")


HEAVY = "{'torch', 'sklearn', 'scipy', 'pandas', 'rich', 'pooch', 'h5py', 'PIL', 'tqdm'}"


@pytest.mark.parametrize(
    "code",
    [
        "import fedekd",
        "from fedekd import methods; assert 'fedekd' in methods.known()",
        "from fedekd import methods; methods.get('fedekd', beta='2').check('classification')",
        "from fedekd import methods; assert methods.groups(); [m.steps(1) for m in methods.known().values()]",
        "from fedekd import gate, conformal",
        "from fedekd.data import catalogue; assert catalogue()",
        "import fedekd.settings, fedekd.runs.store, fedekd.runs.results, fedekd.metrics, fedekd.errors",
    ],
)
def test_what_answers_at_once_imports_nothing_heavy(code):
    run(f"{code}\nimport sys\nheavy = {HEAVY} & set(sys.modules)\nassert not heavy, heavy")


def test_those_who_watch_flowers_processes_do_not_wait_for_torch():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")
    modules = ", ".join(
        f"fedekd.flower.{name}" for name in ("setup.check", "supervise.run_site", "supervise.run_server")
    )
    server = "ServerSettings(address='', **dict.fromkeys(['ca', 'certificate', 'key', 'nodes', 'state'], Path()))"
    code = f"import {modules}, sys\nfrom pathlib import Path\nfrom fedekd.flower.settings import ServerSettings"
    run(f"{code}\nfedekd.flower.setup.check.check_method({server}, '')\nassert 'torch' not in sys.modules")


@pytest.mark.parametrize(
    "code",
    [
        "from fedekd import gate; gate.trust",
        "import fedekd, inspect; inspect.stack()",
        "from fedekd import conformal; conformal.sets",
    ],
)
def test_the_first_import_of_a_fresh_process_works(code):
    """torch's own import walks over sys.modules (inspect.getmodule), and would load a lazy module half way."""
    run(code)


def test_the_package_has_the_names_it_promises():
    import fedekd

    assert all(hasattr(fedekd, name) for name in fedekd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedekd.nothing  # noqa: B018
