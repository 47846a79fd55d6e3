"""Serial and stacked engines give the same per-client results, for every method and both tasks."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedekd import methods
from fedekd.data import Dataset, federate
from fedekd.engines import forward
from fedekd.engines.chunk import Chunk
from fedekd.engines.job import Job, Training
from fedekd.engines.stack import CHUNK, SHRINK_STAGES
from fedekd.engines.stackable import NotStackable, signature
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.runs.runner import run
from fedekd.settings import make_settings
from lines import Notes
from stacking import TRAINED, compare, rows_for
from tiny import job, quick


@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
@pytest.mark.parametrize("name", ["fedekd", "scaffold"])
def test_robust_combination(images, name, combine):
    compare([job(images, methods.get(name), seed, combine=combine) for seed in (0, 1)])


@pytest.mark.parametrize("name", TRAINED)
def test_classification(images, name):
    compare([job(rows_for(name, images), quick(name))])


@pytest.mark.parametrize("name", [n for n in TRAINED if "regression" in methods.get(n).tasks and "-" not in n])
def test_regression(tables, name):
    compare([job(rows_for(name, tables), quick(name))])


@pytest.mark.filterwarnings("error")
def test_arrays_that_may_not_be_written_to_are_no_reason_to_warn(images):
    for array in (images.dataset.x, images.dataset.y):
        array.flags.writeable = False
    try:
        compare([job(images, methods.get("local"))])
    finally:
        for array in (images.dataset.x, images.dataset.y):
            array.flags.writeable = True


def test_seeds_alphas_and_variants_share_a_stack(digits):
    first, second = federate(digits, clients=3, alpha=0.5, seed=1), federate(digits, clients=4, alpha=5.0, seed=2)
    variants = [methods.get("fedekd"), methods.get("fedekd", beta=4.0, lambda_kd=0.25), methods.get("fedekd-entropy")]
    jobs = [job(first, v, seed=0) for v in variants] + [job(second, methods.get("fedekd-half"), seed=3)]
    assert len({signature(j) for j in jobs}) == 1
    compare(jobs, chunk=5)


def test_each_job_of_a_stack_begins_with_its_own_parameters(images):
    jobs = [job(images, methods.get("apfl-adaptive", alpha=alpha)) for alpha in (0.25, 0.75)]
    assert len({signature(j) for j in jobs}) == 1
    found = [float(client.memory["alpha"]) for j in range(2) for client in Stacked(jobs).clients_of(j)]
    assert found == [0.25] * len(images.clients) + [0.75] * len(images.clients)
    compare(jobs)


@pytest.mark.parametrize("name", ["fedekd", "fedtype", "feddyn"])
def test_leaving_in_bunches_changes_nothing(digits, name):
    """On a GPU finished models wait for others, with empty batches; here the same is forced on the CPU."""
    uneven = federate(digits, clients=5, alpha=0.5, seed=2)
    assert len({len(c.train) for c in uneven.clients}) > 3
    compare([job(uneven, methods.get(name))], shrink_stages=2)


def test_pieces_and_proximal_terms(images, digits):
    other = federate(digits, clients=3, alpha=0.5, seed=4)
    jobs = [job(images, methods.get("fedprox")), job(other, methods.get("fedprox", mu=1.0), seed=4)]
    compare(jobs, chunk=2)


@pytest.mark.parametrize("name", ["fedekd", "fedavg", "scaffold"])
def test_the_client_that_diverged_is_named_though_its_upload_reached_the_others(images, name):
    """Whether weights are finite is looked at when the round ends, the oldest answer first."""
    engine = Stacked([job(images, methods.get(name), seed) for seed in (0, 1)])
    role = "proxy" if name == "fedekd" else "private"
    weight = next(iter(engine.stacks[0].weights[role].values()))
    weight[len(images.clients) + 1] = float("nan")  # of the second job's second client
    with pytest.raises(FedekdError, match=rf"client {images.names[1]} diverged in round 1 \(seed 1\)"):
        engine.round()


def test_large_inputs_are_evaluated_in_smaller_batches(images, monkeypatch):
    engine = Stacked([job(images, methods.get("local"))])
    expected, widths, call = engine.evaluate(), [], forward.Forward.__call__
    monkeypatch.setattr(forward, "EVALUATION_VALUES", 3 * len(engine.members) * engine.x[0].numel())
    monkeypatch.setattr(forward.Forward, "__call__", lambda *args: widths.append(args[3].shape[1]) or call(*args))
    assert engine.evaluate() == expected
    assert max(widths) == 3


def test_a_module_that_cannot_be_mapped_is_refused_and_runs_serially(images, tmp_path):
    class Branching(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.head = nn.Linear(64, outputs)

        def forward(self, x):
            x = x.flatten(1)
            return self.head(x if x.sum() > 0 else -x)

    def private(shape, outputs):
        return Branching(outputs)

    with pytest.raises(NotStackable, match="cannot map Branching"):
        Stacked([job(images, methods.get("local"), private=private)])
    given = {"dataset": "digits", "clients": 3, "alpha": 0.5, "rounds": 1, "epochs": 1, "engine": "stacked"}
    settings = make_settings({**given, "methods": ["fedavg"], "private": private, "out": str(tmp_path)})
    notes = Notes()
    assert len(run(settings, notes, images.dataset).records) == 2
    assert len(notes.lines) == 2
    assert "serial engine, since torch.func cannot map Branching" in notes.lines[0]


def test_ragged_clients_cost_little():
    """At alpha 0.1, ten seeds of the paper's FashionMNIST partition: what the engine steps through on a GPU, empty
    places of batches and models that wait for others included, is at most 1.25 times the samples."""
    labels = np.repeat(np.arange(10), 6000)
    rows = Dataset("shapes", "classification", np.zeros((60000, 1), np.float32), labels, 10, scale=None)
    federations = [federate(rows, clients=6, alpha=0.1, seed=seed) for seed in range(10)]
    training = Training(rounds=1, epochs=2, batch_size=64, lr=1e-3)
    jobs = [Job(f, methods.get("local"), s, training, flat, flat) for s, f in enumerate(federations)]
    (engine,) = Stacked(jobs).stacks
    engine.shrink_stages = SHRINK_STAGES
    (step,), (group,) = methods.get("local").steps(0), engine.groups
    waiting = sorted(group.indices, key=lambda i: -len(engine.members[i].train))
    cuts = range(0, len(waiting), CHUNK)
    chunks = [
        Chunk(engine, lambda _: step, step, group, waiting[i : i + CHUNK], 0, engine.lanes.lanes[0]) for i in cuts
    ]
    done = sum((s.last - s.first) * s.active * 64 for chunk in chunks for s in chunk.segments)
    samples = 2 * sum(len(m.train) for m in engine.members)
    assert samples < done <= 1.25 * samples


def flat(shape, outputs):
    return nn.Linear(shape[0], outputs)
