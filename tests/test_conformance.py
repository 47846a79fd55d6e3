"""Every engine keeps one contract: the same method gives the same numbers, or the same line that refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hostile
from fedekd.data import Dataset, federate
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges
from fedekd.methods import Exchange
from fedekd.models import MLP
from hostile import PLACES, READS, Branch, Probe

TRAINING = Training(rounds=2, epochs=2, batch_size=8, lr=3e-3)


def small_private(shape, outputs):
    return MLP(shape[0], outputs, (6, 5))


def small_proxy(shape, outputs):
    return MLP(shape[0], outputs, (4,))


def made(task, clients=3, seed=0, rows=90, share=0.1):
    draw = np.random.default_rng(7)
    x = draw.normal(size=(rows, 4)).astype(np.float32)
    y = np.arange(rows) % 3 if task == "classification" else (x[:, 0] - x[:, 1] ** 2).astype(np.float32)
    key = (task, rows)
    if key not in KNOWN:
        KNOWN[key] = Dataset(
            "made", task, x, y, 3 if task == "classification" else 1, scale=None, standardise_target=True
        )
    return federate(KNOWN[key], clients=clients, alpha=0.5, seed=seed, public=share, min_samples=5)


KNOWN: dict = {}
CLASSES, NUMBERS = made("classification"), made("regression")


def job(method, federation=CLASSES, seed=0, **training):
    return Job(federation, method, seed, replace(TRAINING, **training), small_private, small_proxy)


# --- engines -------------------------------------------------------------------------------------------------


def in_serial(jobs):
    """What each job ends with, and the first line that refused one."""
    return [_told(Serial(one), 0, one) for one in jobs]


def in_stack(jobs):
    engine = Stacked(jobs, chunk=4)
    _run(engine, jobs[0])
    return [_facts(engine, j) for j in range(len(jobs))]


def _told(engine, j, one):
    _run(engine, one)
    return _facts(engine, j)


def _run(engine, one):
    while engine.round_number < one.training.rounds:
        engine.round()
        engine.evaluate()


def _facts(engine, j):
    """All that can be asked of a job after its last round."""
    clients = engine.clients_of(j)
    known = [
        {
            "models": {role: dict(client.models[role].named_parameters()) for role in client.models},
            "received": client.received,
            "memory": client.memory,
            "gradients": client.gradients,
            "steps": client.steps,
            "round": client.round,
            "answers": client._answers("test")[0],
        }
        for client in clients
    ]
    door = engine.doors[j]
    values = engine.evaluate()[j]
    return {
        "clients": known,
        "bytes": [door.bytes_up, door.bytes_down],
        "trust": engine.trust[j],
        "values": values,
        "log": sorted(door.log),
    }


def outcome(engine, jobs):
    try:
        return engine(jobs)
    except FedekdError as error:
        return str(error)


def alike(ours, theirs, where="", atol=2e-4):
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, f"{where}: {ours.dtype} and {theirs.dtype}"
        same = ours.shape == theirs.shape or where.endswith(("table", "rows"))
        assert same, f"{where}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        ours = ours[tuple(slice(n) for n in theirs.shape)]  # what is kept of each row is padded in a stack
        assert torch.allclose(ours.double(), theirs.double(), atol=atol, rtol=1e-4), f"{where}: {ours} and {theirs}"
    elif isinstance(theirs, Mapping):
        assert set(ours) == set(theirs), f"{where}: {set(ours)} and {set(theirs)}"
        for key in theirs:
            alike(ours[key], theirs[key], f"{where} {key}", atol)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            alike(a, b, f"{where} {k}", atol)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-3), where
    else:
        assert ours == theirs, f"{where}: {ours} and {theirs}"


def same(jobs, refused=None):
    """Both engines agree; ``refused`` is part of the line that both must give."""
    jobs = jobs if isinstance(jobs, list) else [jobs]
    ours, theirs = outcome(in_stack, jobs), outcome(in_serial, jobs)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
        assert "\n" not in theirs
        assert refused is not None, theirs
        assert refused in theirs
    else:
        assert refused is None, "nobody has refused it"
        alike(ours, theirs)
    return theirs


# --- what is read --------------------------------------------------------------------------------------------


def refusal(what, where, probe):
    """The words of the line that must refuse to read this there; None where it can be read."""
    no_rows = where in ("remember", "copy", "send")
    whole = no_rows or where in ("remember a split", "send a split", "personal remember")
    server = where == "refine"
    if what == "outputs":
        return "does not name that role" if no_rows else None
    if what == "outputs of another":
        return None if probe.named and not no_rows else "does not name that role"
    if what.startswith("features"):
        seen = probe.wide and not no_rows and ("another" not in what or probe.named)
        return None if seen else "`needs_features`"
    if what in ("weights of another",):
        return "`reads_weights`"
    if what in ("received of a role at home", "received of another"):
        return "nothing of that name"
    if what == "received by name":
        return "nothing of that name" if server else None
    if what == "memory that is not there" or (what == "memory" and server):
        return "neither `begin` nor"
    if what.startswith("gradients"):
        return None if probe.summed and "another" not in what and not server else "gradients=True"
    if what in ("apply", "apply to another", "gradient"):
        return "not to a whole split" if whole else None
    return None


def probes():
    for what in READS:
        for where in PLACES:
            yield Probe(what, where)
            if "another" in what and what.split()[0] in ("outputs", "features"):
                yield Probe(what, where, named=True, wide=True)
            if what.startswith("features"):
                yield Probe(what, where, wide=True)
            if what.startswith("gradients"):
                yield Probe(what, where, summed=True)


def called(probe):
    flags = [flag for flag in ("named", "wide", "summed") if getattr(probe, flag)]
    return "-".join([probe.where, probe.what, *flags]).replace(" ", "_")


@pytest.mark.parametrize("probe", probes(), ids=called)
def test_what_a_step_reads(probe):
    same(job(probe, epochs=1), refusal(probe.what, probe.where, probe))


@pytest.mark.parametrize("what", [w for w in READS if "another" not in w and "not there" not in w])
@pytest.mark.parametrize("where", ["train", "send a split", "predict"])
def test_what_a_step_reads_in_a_regression(what, where):
    probe = Probe(what, where, wide="features" in what, summed="gradients" in what)
    same(job(probe, NUMBERS), refusal(what, where, probe))


def test_what_is_read_moves_the_numbers():
    """Else the tests above would compare what nobody has changed."""
    plain = in_serial([job(Probe("memory with a default", "train"))])
    for what in ("x", "steps", "counts", "uniform", "gradient", "received", "apply"):
        found = in_serial([job(Probe(what, "train"))])
        a, b = (one[0]["clients"][0]["models"]["private"]["head.weight"] for one in (plain, found))
        assert not torch.allclose(a, b, atol=1e-4), what


# --- what is done --------------------------------------------------------------------------------------------

DONE = [
    hostile.Toy(),
    hostile.Settings(),
    hostile.Settings("public", "adam"),
    hostile.Settings("val", "sgd"),
    hostile.Gradients(),
    hostile.Heads(),
    hostile.Heads(True),
    hostile.Copies(),
    hostile.Into(),
    hostile.Each(),
    hostile.Each(True),
    hostile.Each(False, True),
    hostile.Each(True, True),
    hostile.Aliases(),
    hostile.Told(),
    hostile.Seldom(),
    hostile.Changing(),
    hostile.Trusting(),
    hostile.Refined(),
]


@pytest.mark.parametrize("federation", [CLASSES, NUMBERS], ids=["classification", "regression"])
@pytest.mark.parametrize("method", DONE, ids=str)
def test_what_a_method_does(method, federation):
    same(job(method, federation, rounds=3))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_other_optimisers(optimizer):
    same(job(hostile.Settings(), optimizer=optimizer, lr=0.05))


REFUSED = [
    (hostile.BodyUnnamed(), "reads outputs['private'], but the step does not name"),
    (hostile.BodyUnnamedAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.OtherAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.CopyAcross(), "the proxy model has no body.2.weight to copy into private"),
    (hostile.CopyWide(), "the private model has no"),
    (hostile.AnswerWide(), "the private model has no"),
    (hostile.AnswerUnknown(), "the private model has no extra"),
    (hostile.NoPair(), "an answer and the server's new memory"),
    (hostile.VectorLoss(), "take its mean with batch.mean"),
    (hostile.NothingToTrain(), "nothing to train"),
    (hostile.ExchangeInside(), "personalise"),
]


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_no_engine_does(method, words):
    same(job(method), words)


class Tied(torch.nn.Module):
    """A layer under two names."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.head = torch.nn.Linear(inputs, inputs), torch.nn.Linear(inputs, outputs)
        self.again = self.first

    def forward(self, x):
        return self.head(torch.relu(self.again(torch.relu(self.first(x)))))


@pytest.mark.parametrize(
    "method", [hostile.Toy(), hostile.Refined(), hostile.Copies(), hostile.Each(True), Probe("gradient")], ids=str
)
def test_tied_weights(method):
    one = replace(job(method, rounds=3), private=lambda shape, outputs: Tied(shape[0], outputs))
    same([one])


def test_a_client_without_rows_in_a_split():
    none, (first, *others) = np.empty(0, np.int64), CLASSES.clients
    federation = replace(CLASSES, clients=(replace(first, val=none), *others))
    for method in (hostile.Settings(), hostile.Heads(), Probe("y", "remember a split")):
        same(job(method, federation))


def dropped(shape, outputs):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, outputs))


@pytest.mark.parametrize("engine", [lambda one: Stacked([one], chunk=4), Serial], ids=["stacked", "serial"])
def test_chance_is_the_engines_own(engine):
    """A model with dropout: the same seed gives the same bits, and nobody else's numbers are drawn."""
    one, found = replace(job(hostile.Settings()), private=dropped), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        worker = engine(one)
        _run(worker, one)
        assert torch.equal(before, torch.get_rng_state())
        found.append(_facts(worker, 0))
    alike(*found, atol=0)


# --- who takes part ------------------------------------------------------------------------------------------

MANY = made("classification", clients=4, rows=160)
SELDOM = [
    hostile.Toy(),
    hostile.Gradients(),
    hostile.Heads(),
    hostile.Into(),
    hostile.Each(),
    hostile.Each(True, True),
    hostile.Aliases(),
    hostile.Told(),
    hostile.Seldom(),
    hostile.Trusting(),
    hostile.Refined(),
    Probe("received by name", "train"),
    Probe("memory with a default", "predict"),
    Branch(0.3, "predict"),
]


@pytest.mark.parametrize("method", SELDOM, ids=str)
def test_half_of_the_clients_in_each_round(method):
    if isinstance(method, hostile.Gradients):
        same(job(method, MANY, rounds=5, participation=0.5), "neither `begin` nor")
    else:
        same(job(method, MANY, rounds=5, participation=0.5))


def test_someone_was_absent_twice():
    from fedekd.engines.schedule import participants

    there = [participants(0, round, 4, 0.5) for round in range(5)]
    assert any(sum(k not in now for now in there) >= 2 and k in there[-1] for k in range(4))
    assert any(all(k not in now for now in there[:2]) for k in range(4)), "and someone from the start"


def test_whoever_was_never_there_cannot_answer_from_what_a_round_gives():
    same(job(hostile.NeverNoted(), MANY, participation=0.5), "reads memory['late']")
    same(job(hostile.NeverNoted(), MANY))


def test_memory_that_changes_its_shape_while_some_are_absent():
    line = outcome(in_stack, [job(hostile.Changing(), MANY, rounds=5, participation=0.5)])
    assert isinstance(line, str), "a stack cannot hold it, and must not lose it"
    assert "stacks = False" in line


# --- several jobs in a stack ---------------------------------------------------------------------------------

BENT = (
    "train",
    "remember",
    "remember a split",
    "copy",
    "send",
    "send a split",
    "combine",
    "refine",
    "personal train",
    "personal remember",
    "predict",
)


def bent(where, **training):
    other = made("classification", seed=5)
    return [
        job(Branch(0.1, where), **training),
        job(Branch(0.9, where), other, seed=5, **training),
        job(Branch(0.2, where), seed=1, **training),
    ]


@pytest.mark.parametrize("where", BENT)
def test_a_parameter_in_an_if_may_differ_between_jobs(where):
    same(bent(where))


@pytest.mark.parametrize("where", ["train", "remember", "personal train", "predict"])
def test_a_parameter_in_an_if_after_an_interruption(where):
    interrupted(bent(where, rounds=3), at=1)
    interrupted(bent(where, rounds=3), at=2, measured=False)


def test_jobs_of_other_public_rows_do_not_share_a_stack():
    from fedekd.engines.stackable import signature

    one, other = made("classification", share=0.1), made("classification", share=0.2)
    assert len(one.public) != len(other.public)
    assert signature(job(hostile.Toy(), one)) != signature(job(hostile.Toy(), other))


@pytest.mark.parametrize(
    "method", [hostile.Seldom(), hostile.Refined(), hostile.Into(), hostile.Each(True, True)], ids=str
)
def test_unequal_federations_in_one_stack(method):
    same([job(method), job(method, made("classification", clients=4, seed=3), seed=3), job(method, seed=2)])


# --- interruption --------------------------------------------------------------------------------------------


def interrupted(jobs, at=2, measured=True):
    """A run that was saved and loaded ends as one that was not, in both engines, to the bit."""
    import io

    for make in (lambda: Stacked(jobs, chunk=4), lambda: Serial(jobs[0])):
        whole, first, second = make(), make(), make()
        for engine, rounds in ((whole, jobs[0].training.rounds), (first, at)):
            for _ in range(rounds):
                engine.round()
                if measured:
                    engine.evaluate()
        file = io.BytesIO()
        torch.save(first.state(), file)
        file.seek(0)
        second.restore(torch.load(file, weights_only=True))
        alike(second.evaluate(), first.evaluate())
        while second.round_number < jobs[0].training.rounds:
            second.round()
        for j in range(len(whole.doors)):
            alike(_facts(second, j), _facts(whole, j), atol=0)


@pytest.mark.parametrize(
    "method",
    [hostile.Seldom(), hostile.Gradients(), hostile.Into(), hostile.Each(True), hostile.Refined(), hostile.Aliases()],
    ids=str,
)
def test_an_interruption_changes_nothing(method):
    half = not isinstance(method, hostile.Gradients)
    interrupted([job(method, MANY, rounds=5, participation=0.5 if half else 1.0)], at=3, measured=half)


# --- at sites ------------------------------------------------------------------------------------------------


@pytest.fixture
def village(monkeypatch):
    pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "flower"))
    import village

    return village


def at_sites(village, folder, method, caplog, sites=3, **given):
    """What each site ends with, and the simulation of the same rows; or the line that refused it at a site."""
    dataset, more = MANY.dataset, {}
    if method.public or getattr(method, "where", "") == "refine" or getattr(method, "split", "") == "public":
        np.savez(folder / "public.npz", x=dataset.x[:12], y=dataset.y[:12])
        more["public"] = folder / "public.npz"
    name, schema = f"hostile:{type(method).__name__}", village.schema_of(dataset)
    server = village.make_server(folder, method=name, parameters=vars(method), batch_size=8, **more, **given)
    leave = tuple(exchanges(method, server.rounds))
    trusts = (*village.TINY.values(), name)
    own = village.write_sites(folder, dataset, sites, leave=leave, trusts=trusts, **more)

    def deployed(_):
        with caplog.at_level("ERROR", "fedekd.site"):
            try:
                _, report = village.federate(server, schema, own)
            except (FedekdError, village_errors()) as error:
                raise FedekdError(_first_failure(caplog) or str(error)) from None
        if report["refused"] and (line := _first_failure(caplog)):
            raise FedekdError(line)
        values = {site["name"]: site["value"] for site in report["sites"]}
        return [{**village.state_of(site)["client"], "value": values[site.name]} for site in own]

    def simulated(_):
        engine = village.simulate(server, schema, own)
        return [{**client.state(), "value": client.score()} for client in engine.clients]

    return outcome(deployed, []), outcome(simulated, [])


def village_errors():
    from fedekd.flower.server.conversation import TooFew

    return TooFew


def _first_failure(caplog):
    lines = [record.getMessage() for record in caplog.records if record.name == "fedekd.site"]
    return lines[0] if lines else None


def kept_at_sites(pair, refused=None):
    deployed, simulated = pair
    if isinstance(deployed, str) or isinstance(simulated, str):
        assert isinstance(simulated, str), deployed
        assert simulated in deployed, f"{simulated!r} and {deployed!r}"
        assert refused is not None, simulated
        assert refused in simulated
    else:
        assert refused is None, "nobody has refused it"
        for ours, theirs in zip(deployed, simulated, strict=True):
            alike(ours, theirs)


AT_SITES = [
    Probe(what, where, summed="gradients" in what, wide="features" in what)
    for what, where in [
        ("outputs", "remember a split"),
        ("features", "train"),
        ("weights of a role at home", "train"),
        ("received", "copy"),
        ("received by name", "predict"),
        ("memory", "send"),
        ("gradients", "send a split"),
        ("uniform", "remember a split"),
        ("rows", "train"),
        ("counts", "send"),
        ("steps", "personal train"),
        ("gradient", "train"),
        ("apply", "predict"),
        ("lr", "copy"),
        ("y", "refine"),
        ("teachers", "refine"),
        ("outputs of another", "train"),
        ("weights of another", "predict"),
        ("received of a role at home", "remember"),
        ("memory that is not there", "send"),
        ("apply", "send a split"),
        ("features of another", "train"),
        ("memory", "refine"),
        ("gradients of another", "copy"),
    ]
]


@pytest.mark.parametrize("probe", AT_SITES, ids=called)
def test_what_a_step_reads_at_a_site(village, tmp_path, caplog, probe):
    kept_at_sites(at_sites(village, tmp_path, probe, caplog), refusal(probe.what, probe.where, probe))


@pytest.mark.parametrize("method", [m for m in DONE if not isinstance(m, hostile.Changing)], ids=str)
def test_what_a_method_does_at_sites(village, tmp_path, caplog, method):
    kept_at_sites(at_sites(village, tmp_path, method, caplog, rounds=3))


@pytest.mark.parametrize("method", [hostile.Seldom(), hostile.Into(), hostile.Each(True), hostile.Refined()], ids=str)
def test_half_of_the_sites_in_each_round(village, tmp_path, caplog, method):
    kept_at_sites(at_sites(village, tmp_path, method, caplog, sites=4, rounds=5, participation=0.5))


UNUSABLE = (hostile.AnswerWide, hostile.AnswerUnknown)  # a site looks at an answer before its model does


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_no_site_does(village, tmp_path, caplog, method, words):
    deployed, simulated = at_sites(village, tmp_path, method, caplog)
    if isinstance(method, UNUSABLE):
        assert "the server's answer for the private model cannot be used" in deployed
        assert words in simulated
    else:
        kept_at_sites((deployed, simulated), words)


# --- with differential privacy -------------------------------------------------------------------------------


def with_dp(folder, method, **training):
    """A client with all rows in every batch, no noise and a clip that nothing reaches; and a plain one."""
    pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")
    from fedekd.engines.client import Client
    from fedekd.flower.settings import Privacy
    from fedekd.flower.site.privacy import PrivateClient

    one = replace(MANY, clients=MANY.clients[:1], names=MANY.names[:1])
    settings = {"batch_size": 500, "optimizer": "sgd", "lr": 0.1, "rounds": 1, "epochs": 3, **training}
    alone, dp = job(method, one, **settings), Privacy(epsilon=float("inf"), delta=1e-3, clip=1e9)

    def private(_):
        client = PrivateClient(alone, 0, dp, folder / "site" / "federation")
        client.budget.noise = 0.0
        return played(client)

    def plain(_):
        return played(Client(alone, 0, 0))

    def played(client):
        uploads = {}
        for step in method.steps(0):
            if isinstance(step, Exchange):
                uploads[step.name] = client.upload(step, 0)
            else:
                client.perform(step, 0)
        return {"uploads": uploads, "models": {role: client.weights(role) for role in client.models}}

    return outcome(private, []), outcome(plain, [])


@pytest.mark.parametrize("method", [hostile.Toy(), hostile.Heads(), hostile.Trusting(), hostile.Copies()], ids=str)
def test_without_noise_and_clip_dp_is_plain_training(tmp_path, method):
    private, plain = with_dp(tmp_path, method)
    if isinstance(private, str):
        assert "leave [dp] out" in private
        assert "\n" not in private
        assert isinstance(method, hostile.Copies), private
    else:
        alike(private, plain)


DP_REFUSES = [
    (hostile.Settings(), "reads the gradients"),
    (hostile.Seldom(), "reads the gradients"),
    (hostile.Each(False, True), "sends what the method calls 'table'"),
    (hostile.Into(), "leave [dp] out"),
    (hostile.VectorLoss(), "take its mean"),
    (Probe("outputs of another", "train"), "leave [dp] out"),
    (Probe("memory that is not there", "train"), "[dp]"),
]


@pytest.mark.parametrize(("method", "words"), DP_REFUSES, ids=lambda v: type(v).__name__)
def test_what_dp_refuses_is_one_line(tmp_path, method, words):
    private, _ = with_dp(tmp_path, method)
    assert isinstance(private, str)
    assert words in private
    assert "\n" not in private
