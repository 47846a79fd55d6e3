"""The door: what passes it, what it refuses, how uploads are combined and how many bytes they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedekd import methods, parts
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.exchange import (
    Aggregator,
    Door,
    answer_of,
    average,
    averaging_weights,
    finite,
    same_shapes,
    shared_roles,
    shares,
    size,
    up_together,
)
from fedekd.methods.base import Exchange, Method
from lines import one_line
from tiny import quick

TRAINING = Training(rounds=2, epochs=1, batch_size=32, lr=1e-2)
KNOWN = methods.known()
SENDS = {
    "local": set(),
    "constant": set(),
    "fedavg": {"private"},
    "fedprox": {"private"},
    "feddyn": {"private"},
    "fedekd": {"proxy"},
    "fml": {"proxy"},
    "second-opinion": {"proxy"},
    "second-opinion-near": {"proxy"},
    "second-opinion-taught": {"proxy"},
    "fedtype": {"proxy"},
    "fedtype-prox": {"proxy"},
    "fedavg-tuned": {"private"},
    "fedper": {"private"},
    "fedrep": {"private"},
    "fedbn": {"private"},
    "fedrod": {"private"},
    "knnper": {"private"},
    "ditto": {"global"},
    "apfl": {"global"},
    "pfedme": {"private"},
    "perfedavg": {"private"},
    "scaffold": {"private", "control"},
    "moon": {"private"},
    "fedavgm": {"private"},
    "fedadam": {"private"},
    "fedmd": {"logits"},
    "fedproto": {"prototypes"},
    "fedgh": {"prototypes"},
    "feddf": {"private"},
    "fccl": {"logits"},
    "pfedhr": {"private"},
}
PROXIED = [name for name, method in KNOWN.items() if "proxy" in method.roles]


def dense(shape, outputs, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, outputs))


def private(shape, outputs):
    return dense(shape, outputs, 9)


def proxy(shape, outputs):
    return dense(shape, outputs, 5)


def normed(shape, outputs):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, outputs)
    )


def rows_for(federation, method):
    """The last client's rows for everybody, where a method needs public ones."""
    if not method.public or len(federation.public):
        return federation
    *rest, last = federation.clients
    return replace(federation, clients=tuple(rest), names=federation.names[:-1], public=last.train)


def engine_of(federation, method, private=private, **training):
    federation = rows_for(federation, method)
    return Serial(Job(federation, method, 0, replace(TRAINING, **training), private, proxy))


def watched(engine):
    """What passes the door from now on: (name, client, the tensors themselves, a copy of them)."""
    passed, up = [], engine.door.up

    def record(name, clients, stack):
        for k, client in enumerate(clients):
            message = {key: t[k] for key, t in stack.items()}
            passed.append((name, client, message, {key: t.clone() for key, t in message.items()}))
        return up(name, clients, stack)

    engine.door.up = record
    return passed


def state(federation, seed=0, width=4):
    torch.manual_seed(seed)
    return dense(federation.dataset.x.shape[1:], 2, width).state_dict()


# What leaves a client


def fits(name, task):
    try:
        KNOWN[name].check(task)
    except FedekdError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "task"), [(n, t) for n in KNOWN for t in ("classification", "regression") if fits(n, t)]
)
def test_only_what_is_declared_passes(request, name, task):
    federation = request.getfixturevalue("images" if task == "classification" else "tables")
    engine = engine_of(federation, quick(name))
    passed = watched(engine)
    wanted = []
    for round in range(TRAINING.rounds):
        engine.round()
        wanted += [step.name for step in methods.get(name).steps(round) if isinstance(step, Exchange)]
    declared = SENDS[name] if name in SENDS else SENDS[name.partition("-")[0]]
    assert {sent for sent, *_ in passed} == declared == engine.door.names
    assert [(sent, client) for sent, client, *_ in passed] == [
        (n, c) for n in wanted for c in engine.job.federation.names
    ]


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbn", "fedrod", "ditto", "apfl", "fedproto", "fedgh"])
def test_what_is_personal_never_passes(images, name):
    """The head, the norms or the whole model that a method keeps at the client: no tensor of it is in any upload."""
    engine = engine_of(images, quick(name), normed, batch_size=8)
    passed = watched(engine)
    kept = {
        "fedper": ("private", parts.Head()),
        "fedrep": ("private", parts.Head()),
        "fedbn": ("private", parts.Norms()),
        "fedrod": ("personal", None),
        "ditto": ("private", None),
        "apfl": ("personal", None),
        "fedproto": ("private", None),
        "fedgh": ("private", None),
    }[name]
    states = []
    for _ in range(TRAINING.rounds):
        for client in engine.clients:
            state = client.models[kept[0]].state_dict()
            states.append({n: state[n].clone() for n in parts.names(kept[1], client.models[kept[0]])})
        engine.round()
    assert passed
    later = states[len(engine.clients) :]
    trained = [t for state in later for t in state.values() if t.is_floating_point()]
    trained = [t for t in trained if not any(torch.equal(t, old) for old in states[0].values())]  # common to all
    assert trained
    for *_, copy in passed:
        for tensor in copy.values():
            assert not any(tensor.shape == t.shape and t.numel() > 1 and torch.equal(tensor, t) for t in trained)


@pytest.mark.parametrize("name", PROXIED)
def test_private_weights_never_pass(images, name):
    engine = engine_of(images, quick(name))
    passed = watched(engine)

    def private_now():
        return [{n: t.clone() for n, t in client.models["private"].state_dict().items()} for client in engine.clients]

    private_states = private_now()
    for _ in range(TRAINING.rounds):
        engine.round()
        private_states += private_now()
    assert len(passed) == TRAINING.rounds * len(images.clients)
    signature = {n: t.shape for n, t in private_states[0].items()}
    homes = {t.data_ptr() for client in engine.clients for t in client.models["private"].state_dict().values()}
    for role, _, itself, copy in passed:
        assert role == "proxy"
        assert {n: t.shape for n, t in copy.items()} != signature
        assert not homes & {t.data_ptr() for t in itself.values()}
        for tensor in copy.values():
            for own in private_states:
                assert not any(tensor.shape == t.shape and torch.equal(tensor, t) for t in own.values())


def client_0_when(federation, name, y, closed):
    """The first client's weights after two rounds with labels ``y``, with what passes the door blanked if closed."""
    engine = engine_of(replace(federation, dataset=replace(federation.dataset, y=y)), methods.get(name))
    if closed:
        up = engine.door.up
        engine.door.up = lambda *sent: {n: torch.zeros_like(t) for n, t in up(*sent).items()}
    engine.round()
    engine.round()
    return [t.clone() for model in engine.clients[0].models.values() for t in model.state_dict().values()]


@pytest.mark.parametrize("name", [n for n, m in KNOWN.items() if "classification" in m.tasks and "-" not in n])
def test_the_door_is_the_only_way_between_clients(images, name):
    """With blank messages, what the other clients hold cannot matter to the first one; with real ones it does."""
    images = rows_for(images, methods.get(name))
    other = images.dataset.y.copy()
    for client in images.clients[1:]:
        rows = np.concatenate([client.train, client.val, client.test])
        other[rows] = (other[rows] + 3) % images.dataset.outputs

    def differ(closed):
        pairs = zip(*(client_0_when(images, name, y, closed) for y in (images.dataset.y, other)), strict=True)
        return any(not torch.equal(a, b) for a, b in pairs)

    assert not differ(closed=True)
    assert differ(closed=False) == bool(SENDS[name])


def test_a_role_that_was_not_declared_is_stopped():
    door = Door(frozenset({"proxy"}))
    with pytest.raises(FedekdError, match="private of client b may not leave") as error:
        door.up("private", ["b"], {"w": torch.ones(1, 2)})
    assert "proxy" in one_line(error)
    assert (door.bytes_up, door.log) == (0, [])


def test_shared_roles_look_at_every_round():
    class Late(Method):
        def steps(self, round):
            return (Exchange("proxy"),) if round == 2 else ()

    assert shared_roles(Late(), 2) == frozenset()
    assert shared_roles(Late(), 3) == {"proxy"}


# What it refuses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad, dtype):
    door = Door(frozenset({"proxy"}))
    message = {"fine": torch.ones(3), "layer.w": torch.tensor([[0.0, 1.0], [bad, 2.0]], dtype=dtype)}
    with pytest.raises(FedekdError, match="client hospital 2 diverged") as error:
        door.up(
            "proxy", ["hospital 1", "hospital 2"], {n: torch.stack([torch.ones_like(t), t]) for n, t in message.items()}
        )
    assert "layer.w" in one_line(error)
    assert (door.bytes_up, door.log) == (0, [])


def test_rows_with_a_number_that_is_not_finite_are_found_in_any_tensor():
    bad = torch.full((3, 2, 2), -3e38)
    bad[1, 0, 1], bad[2, 1, 1] = math.nan, -math.inf
    fine = {"wide": torch.ones(3, 2, dtype=torch.float64), "scalar": torch.zeros(3), "none": torch.empty(3, 0)}
    names, good = finite({**fine, "n": torch.arange(3), "bad": bad})
    assert names == ["wide", "scalar", "none", "bad"]
    assert good.tolist() == [[True, True, True]] * 3 + [[True, False, False]]


def test_many_doors_together_take_and_refuse_what_each_would():
    clients = [["a", "b"], ["c"], ["d", "e"]]
    stack = {"w": torch.ones(5, 2, 3), "n": torch.zeros(5, dtype=torch.long)}
    apart, together = ([Door(frozenset({"proxy"})) for _ in clients] for _ in range(2))
    later = []
    up_together(together, "proxy", clients, size(stack), finite(stack), later)
    for door, own, rows in zip(apart, clients, ([0, 1], [2], [3, 4]), strict=True):
        door.up("proxy", own, {n: t[rows] for n, t in stack.items()})
    assert together == apart
    stack["w"][2:, 0, 1] = math.nan
    for check in later:
        check()  # what was asked does not change any more
    up_together(together, "proxy", clients, size(stack), finite(stack), later)
    with pytest.raises(FedekdError, match="client c diverged: its proxy has NaN or inf in w"):
        later[-1]()
    with pytest.raises(FedekdError, match="private of client a may not leave"):
        up_together(together, "private", clients, size(stack), finite(stack), later)


def test_the_mean_alone_is_what_combining_gives():
    trained = {"w": torch.zeros(4)}
    stack = {"w": torch.randn(3, 4), "running": torch.randn(3, 2), "n": torch.arange(3)}
    one, other = (Aggregator({"proxy": trained}, clients=3) for _ in range(2))
    for weights in ([1.0, 1.0, 1.0], [5.0, 2.0, 1.0]):
        ours = average(stack, shares(weights, torch.device("cpu")))
        one.gives("proxy", ours)
        theirs = other.combine(Exchange("proxy"), stack, weights, range(3), 0)
        for found, wanted in ((ours, theirs), (one.sent["proxy"], other.sent["proxy"])):
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[n], wanted[n]) for n in wanted)
        assert one.memory == other.memory


def test_the_largest_finite_numbers_pass():
    message = {"w": torch.tensor([[torch.finfo(torch.float32).max, -0.0, 1e-45]]), "n": torch.tensor([2**62])}
    assert Door(frozenset({"proxy"})).up("proxy", ["a"], message) is message


def test_a_poisoned_client_stops_the_round_and_is_named(images):
    @dataclass(frozen=True)
    class Send(Method):
        def steps(self, round):
            return (Exchange("private"),)

    engine = engine_of(images, Send())
    before = {n: t.clone() for n, t in engine.clients[0].models["private"].state_dict().items()}
    with torch.no_grad():
        engine.clients[1].models["private"][1].bias[3] = math.nan
    with pytest.raises(FedekdError, match=f"client {images.names[1]} ") as error:
        engine.round()
    assert "1.bias" in one_line(error)
    assert all(torch.equal(before[n], t) for n, t in engine.clients[0].models["private"].state_dict().items())


@pytest.mark.parametrize(
    "odd",
    [
        {"w": torch.ones(3), "b": torch.ones(1)},
        {"w": torch.ones(2, 1), "b": torch.ones(1)},
        {"w": torch.ones(2)},
        {"w": torch.ones(2), "c": torch.ones(1)},
        {"w": torch.ones(2), "b": torch.ones(1), "more": torch.ones(1)},
    ],
)
def test_uploads_of_other_shapes_are_refused(odd):
    usual = {"w": torch.ones(2), "b": torch.ones(1)}
    with pytest.raises(FedekdError, match="client third's differs from client first's") as error:
        same_shapes([usual, usual, odd], "proxy", ["first", "second", "third"])
    assert "proxy" in one_line(error)


@pytest.mark.parametrize("name", [n for n in SENDS if SENDS[n] & {"private", "global"} and KNOWN[n].stacks])
def test_clients_with_other_private_models_cannot_average_them(images, name):
    def own(shape, outputs, client):
        return dense(shape, outputs, 4 + client)

    with pytest.raises(FedekdError, match="architecture") as error:
        engine_of(images, methods.get(name), own)
    one_line(error)


@pytest.mark.parametrize("name", [n for n in SENDS if SENDS[n] == {"proxy"}])
def test_clients_with_other_private_models_average_their_proxies(images, name):
    def own(shape, outputs, client):
        return dense(shape, outputs, 4 + client)

    engine = engine_of(images, methods.get(name), own)
    engine.round()
    assert engine.door.bytes_up > 0


# How uploads are combined


def mean_of(messages, weights):
    stack = {n: torch.stack([m[n] for m in messages]) for n in messages[0]}
    return average(stack, torch.tensor(weights, dtype=torch.float64) / sum(weights))


def test_averages_by_hand():
    messages = [{"w": torch.tensor([1.0, 8.0])}, {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([8.0, 1.0])}]
    assert averaging_weights("uniform", [10, 30, 60]) == [1, 1, 1]
    assert averaging_weights("samples", [10, 30, 60]) == [10, 30, 60]
    uniform = mean_of(messages, averaging_weights("uniform", [10, 30, 60]))
    samples = mean_of(messages, averaging_weights("samples", [10, 30, 60]))
    torch.testing.assert_close(uniform["w"], torch.tensor([4.0, 3.0]))
    torch.testing.assert_close(samples["w"], torch.tensor([0.1 + 0.9 + 4.8, 0.8 + 0.0 + 0.6]))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_averages_follow_numpy_and_leave_the_uploads_alone(rows, random):
    weights = [random.randint(1, 500) for _ in rows]
    messages = [{"w": torch.tensor(row)} for row in rows]
    before = [m["w"].clone() for m in messages]
    mean = mean_of(messages, weights)["w"]
    expected = np.average(np.array(rows), axis=0, weights=weights)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-4, atol=1e-3)
    mean.zero_()
    assert all(torch.equal(m["w"], b) for m, b in zip(messages, before, strict=True))


def test_an_average_of_equals_is_that_model(images):
    message = state(images)
    mean = mean_of([message] * 3, [0.2, 7, 3])
    for name, tensor in message.items():
        torch.testing.assert_close(mean[name], tensor, rtol=1e-6, atol=1e-7)


def test_counters_come_from_the_first_client_as_they_are():
    messages = [{"n": torch.tensor(i), "on": torch.tensor([i > 3])} for i in (3, 8)]
    mean = mean_of(messages, [1, 9])
    assert mean["n"].dtype == torch.int64
    assert int(mean["n"]) == 3
    assert mean["on"].tolist() == [False]
    mean["n"].zero_()
    assert int(messages[0]["n"]) == 3


def test_batch_norm_travels_with_its_buffers(images):
    def normed(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, outputs))

    engine = engine_of(images, methods.get("fedavg"), normed, weighting="samples")
    passed = watched(engine)
    engine.round()
    counts = [len(client.train) for client in images.clients]
    sent = torch.stack([copy["1.running_mean"] for *_, copy in passed])
    share = torch.tensor(counts)[:, None] / sum(counts)
    assert not torch.allclose(sent[0], sent[1])
    for client in engine.clients:
        torch.testing.assert_close(client.models["private"][1].running_mean, (sent * share).sum(0))
        assert client.models["private"][1].num_batches_tracked == -(-counts[0] // TRAINING.batch_size)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_every_client_gets_the_average(images, weighting):
    engine = engine_of(images, methods.get("fedavg"), weighting=weighting)
    passed = watched(engine)
    engine.round()
    sizes = [len(client.train) for client in images.clients]
    assert len(set(sizes)) > 1
    weights = [1.0] * len(sizes) if weighting == "uniform" else sizes
    for client in engine.clients:
        for name, tensor in client.models["private"].state_dict().items():
            sent = np.stack([copy[name].numpy() for *_, copy in passed])
            expected = np.average(sent, axis=0, weights=weights)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-6)


# How many bytes


def test_bytes_are_elements_times_their_size():
    message = {
        "w": torch.zeros(3, 5),
        "half": torch.zeros(7, dtype=torch.float16),
        "n": torch.tensor(1),
        "double": torch.zeros(2, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "on": torch.tensor([True]),
    }
    assert size(message) == 15 * 4 + 7 * 2 + 8 + 2 * 8 + 0 + 1
    assert size({"view": torch.zeros(100)[:10], "expanded": torch.zeros(1).expand(6)}) == 64
    door = Door(frozenset({"proxy"}))
    door.up("proxy", ["a"], {n: t[None] for n, t in message.items()})
    door.up("proxy", ["b"], {n: t[None] for n, t in message.items()})
    assert (door.bytes_up, door.bytes_down) == (2 * 99, 0)
    assert door.down(message, 5) is message
    assert (door.bytes_up, door.bytes_down) == (2 * 99, 5 * 99)
    assert door.log == [("a", "proxy"), ("b", "proxy")]


@pytest.mark.parametrize(("name", "width"), [("local", 0), ("fedavg", 9), ("feddyn", 9), ("fedekd", 5), ("fml", 5)])
def test_a_run_costs_its_models_both_ways(images, name, width):
    engine = engine_of(images, quick(name))
    for _ in range(TRAINING.rounds):
        engine.round()
    model = 4 * (64 * width + width + width * 10 + 10) if width else 0
    expected = TRAINING.rounds * len(images.clients) * model
    assert (engine.door.bytes_up, engine.door.bytes_down) == (expected, expected)
    assert len(engine.door.log) == (len(images.clients) if width else 0)  # of the last round


def test_the_log_of_a_stack_is_of_its_last_round_too(images):
    engine = Stacked([Job(images, methods.get("fedavg"), 0, TRAINING, private, proxy)])
    for _ in range(TRAINING.rounds):
        engine.round()
    assert engine.doors[0].log == [(name, "private") for name in images.names]


# The server's half


def combined(step, trees, start=None, weights=None, **about):
    server = Aggregator({step.name: start} if start else {}, **about)
    return server, server.combine(step, trees, weights or [1.0] * len(trees), range(len(trees)), 4)


@pytest.mark.parametrize("wrong", [({}, {}, {}), ({},), {}, None, [{}, {}]])
def test_what_combines_must_give_an_answer_and_a_memory(wrong):
    step = Exchange("sums", lambda uploads: wrong, send=dict)
    with pytest.raises(FedekdError, match=r"'sums' gives .*; it must return a pair") as error:
        combined(step, [{"a": torch.ones(1)}])
    one_line(error)


def test_an_answer_to_all_is_a_dict():
    with pytest.raises(FedekdError, match="the answer to 'sums' is list; return a dict"):
        combined(Exchange("sums", lambda uploads: ([{}], {}), send=dict), [{"a": torch.ones(1)}])


def test_what_a_method_is_told_of_the_uploads():
    seen = []

    def combine(uploads):
        seen.append(uploads)
        return uploads.mean(), {"calls": torch.tensor(1) + uploads.memory.get("calls", 0)}

    step, trees = Exchange("sums", combine, send=dict), [{"a": torch.tensor([1.0])}, {"a": torch.tensor([5.0])}]
    server = Aggregator({}, clients=7, seed=3)
    answer = server.combine(step, trees, [3, 1], (2, 5), 4)
    again = server.combine(step, {"a": torch.tensor([[2.0], [4.0]])}, [1, 1], (0, 6), 5)
    assert (answer["a"].item(), again["a"].item()) == (2.0, 3.0)
    first, second = seen
    assert first.weights.tolist() == [0.75, 0.25]
    assert (first.numbers, first.clients, first.seed, first.round) == ((2, 5), 7, 3, 4)
    assert (first.previous, first.memory) == ({}, {})
    assert second.previous["a"].item() == 2.0
    assert second.memory["calls"] == 1
    assert [tree["a"].item() for tree in second.each] == [2.0, 4.0]
    assert first.stacked["a"].tolist() == [[1.0], [5.0]]
    other = Aggregator({})
    other.restore(server.state())
    assert other.memory["sums"]["calls"] == 2
    assert other.sent["sums"]["a"].item() == 3.0


def test_a_method_combines_weights_and_buffers_are_averaged_beside_them():
    """Weights are what the clients begin with by name; the rest of a model's state is none of the method's business."""
    told = []

    def halved(uploads):
        told.append(set(uploads.stacked))
        return {n: 0.5 * w for n, w in uploads.mean().items()}, {}

    trees = [{"w": torch.tensor([2.0]), "mean": torch.tensor([1.0]), "count": torch.tensor(3)} for _ in range(2)]
    trees[1] = {"w": torch.tensor([6.0]), "mean": torch.tensor([3.0]), "count": torch.tensor(9)}
    server, answer = combined(Exchange("private", halved), trees, start={"w": torch.zeros(1)})
    assert told == [{"w"}]
    assert (answer["w"].item(), answer["mean"].item(), answer["count"].item()) == (2.0, 2.0, 3)
    assert {n: w.item() for n, w in server.sent["private"].items()} == {"w": 2.0}


def test_each_client_may_get_an_answer_of_its_own():
    rows = {"a": torch.tensor([[1.0], [2.0]])}
    for answer in (rows, [{"a": rows["a"][0]}, {"a": rows["a"][1]}]):
        step = Exchange("sums", lambda uploads, answer=answer: (answer, {}), send=dict, each=True)
        server, found = combined(step, [{"a": torch.ones(1)}] * 2)
        assert [answer_of(found, place, True)["a"].item() for place in range(2)] == [1.0, 2.0]
        assert "sums" not in server.sent
    assert answer_of({"a": torch.tensor([7.0])}, 1, False)["a"].item() == 7.0


def test_one_upload_alone_is_its_own_mean():
    _, answer = combined(
        Exchange("sums", send=dict), [{"a": torch.tensor([3.0]), "empty": torch.zeros(0)}], weights=[5]
    )
    assert answer["a"].item() == 3.0
    _, nothing = combined(Exchange("private"), [{}], start=None)
    assert nothing == {}


def test_an_answer_to_each_that_is_none_to_some_costs_one_line():
    """Two rows, as many as there are classes: with two clients, as in the dry pass, nobody could tell."""
    step = Exchange("made", lambda uploads: ({"a": uploads.stacked["a"].mean(0)}, {}), send=dict, each=True)
    uploads = [{"a": torch.ones(2)} for _ in range(3)]
    assert Aggregator({}).combine(step, uploads[:2], [1.0] * 2, range(2), 0)["a"].shape == (2,)
    with pytest.raises(FedekdError, match=r"'made' answers each with \[2\] rows for 3 uploads; give one for each"):
        Aggregator({}).combine(step, uploads, [1.0] * 3, range(3), 0)
