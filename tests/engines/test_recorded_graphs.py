"""What is done ahead of a round, and what a CUDA graph does in it. On a GPU: benchmarks/gpu_check.py --lanes."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from emulated_graphs import switch_on

from fedekd import methods
from fedekd.engines import chunk, cuda_graphs
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.methods import Exchange, Method, Train
from fedekd.methods.fedekd import FedeKD
from tiny import job, quick


class Graph:
    """Knows what was asked for while it was captured, and does it again."""

    def __init__(self):
        self.told = []

    def replay(self):
        self.told.append("replayed")


@pytest.fixture
def graphs(monkeypatch):
    made = []

    def graph():
        made.append(Graph())
        return made[-1]

    @contextmanager
    def capturing(graph, pool):
        graph.told.append("captured")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(cuda_graphs, "capturing", capturing)
    return made


def test_work_is_captured_the_second_time_and_replayed_from_then_on(graphs):
    recorded, read, done = cuda_graphs.Recorded(), [torch.zeros(2)], []
    for _ in range(4):
        recorded.do(lambda: done.append(len(graphs)), read, True)
    assert done == [0, 1]  # eagerly, then while it is captured, which does nothing on a GPU
    assert [one.told for one in graphs] == [["captured", "replayed", "replayed", "replayed"]]


def test_a_graph_is_forgotten_where_it_would_read_a_tensor_that_was_replaced(graphs):
    recorded, read, done = cuda_graphs.Recorded(), [torch.zeros(2), torch.zeros(2)], []
    for _ in range(3):
        recorded.do(lambda: done.append(len(graphs)), list(read), True)
    read[1] = read[1].clone()
    for _ in range(3):
        recorded.do(lambda: done.append(len(graphs)), list(read), True)
    assert done == [0, 1, 1, 2]
    assert [one.told.count("replayed") for one in graphs] == [2, 2]


def test_what_is_not_worth_capturing_is_done_as_it_is(graphs):
    recorded, done, read = cuda_graphs.Recorded(), [], [torch.zeros(2)]
    for _ in range(3):
        recorded.do(lambda: done.append(1), read, False)
    assert len(done) == 3
    assert not graphs
    assert not recorded.watched  # whose memory is not kept


def test_what_was_captured_gives_the_same_tensors_again(graphs):
    recorded, read = cuda_graphs.Recorded(), [torch.zeros(2)]
    first, second, third = (recorded.do(lambda: torch.ones(2), read, True) for _ in range(3))
    assert first is not second
    assert second is third


def test_work_that_cannot_be_captured_goes_on_as_it_is(graphs, monkeypatch):
    @contextmanager
    def full(graph, pool):
        yield
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(cuda_graphs, "capturing", full)
    recorded, read, done = cuda_graphs.Recorded(), [torch.zeros(2)], []
    given = [recorded.do(lambda: done.append(1) or len(done), read, True) for _ in range(4)]
    assert given == [1, 3, 4, 5]  # the second was tried in vain
    assert len(graphs) == 1


STACKED = [name for name, method in methods.known().items() if method.roles and method.stacks and not method.public]


@pytest.mark.parametrize("name", STACKED)
def test_measuring_leaves_every_tensor_that_graphs_read_where_it_is(images, name):
    engine = Stacked([job(images, methods.get(name), rounds=3, epochs=1)])
    (stack,) = engine.stacks
    engine.round()
    chunk = next(iter(stack.chunks.values()))[1]
    before = chunk._lasting()
    engine.measure()
    engine.round()
    after = chunk._lasting()
    assert all(map(operator.is_, before, after))
    assert len(before) == len(after)


@dataclass(frozen=True)
class Changing(Method):
    """Its private model trains twice in the first round and once in the others, at the same place of a round."""

    name = "changing"
    roles = ("private", "proxy")

    def steps(self, round):
        private, proxy = Train(("private",), self.learn_private), Train(("proxy",), self.learn_proxy)
        return proxy if round else private, private, Exchange("private")

    def learn_private(self, batch):
        return batch.supervised("private")

    def learn_proxy(self, batch):
        return batch.supervised("proxy")


@dataclass(frozen=True)
class Anonymous(Method):
    """A function that is another one each time, so that no chunk comes again."""

    name = "anonymous"

    def steps(self, round):
        return Train(("private",), lambda batch: batch.supervised("private")), Exchange("private")


@dataclass(frozen=True)
class Anchored(Method):
    """The mean; in every third round the server keeps what it sent before, and pulls the mean half way there."""

    name = "anchored"

    def steps(self, round):
        train = Train(("private",), self.learn)
        return train, Exchange("private", self.pull) if round % 3 == 2 else Exchange("private")

    def learn(self, batch):
        return batch.supervised("private")

    def pull(self, uploads):
        mean, kept = uploads.mean(), uploads.memory or uploads.previous
        return {name: 0.5 * (mean[name] + kept[name]) for name in mean}, dict(uploads.previous)


def weights(engine):
    return [w.clone() for stack in engine.stacks for tree in stack.weights.values() for w in tree.values()]


def trained(jobs, graphs):
    """The engine, and all weights and results of each round."""
    engine, found = Stacked(jobs), []
    for stack in engine.stacks:
        stack.graphs = graphs
    for _ in range(jobs[0].training.rounds):
        engine.round()
        found.append((weights(engine), [[one.value for one in own] for own in engine.measure()]))
    return engine, found


@pytest.mark.parametrize("name", ["fedekd@shuffled", "fedrep", "second-opinion-near", "scaffold"])
def test_a_round_whose_beginning_and_end_are_graphs_gives_the_same_bits(images, name, monkeypatch):
    switch_on(monkeypatch)
    jobs = [job(images, quick(name), seed=seed, rounds=5, epochs=1) for seed in (0, 1)]
    (_, plain), (engine, replayed) = trained(jobs, graphs=False), trained(jobs, graphs=True)
    for (one, results), (other, again) in zip(plain, replayed, strict=True):
        assert all(map(torch.equal, one, other))
        assert results == again
    made = [made for stack in engine.stacks for (where, *_), (_, made) in stack.chunks.items() if where[0] == "step"]
    assert made
    assert all(one.models_read.graph and one.given_back.graph for one in made)
    exchange = engine.exchange
    only_means = [name for name, step in exchange.exchanges.items() if exchange._means_only(step)]
    assert all(exchange.recorded[name].graph for name in only_means)


def test_what_a_server_keeps_of_an_answer_is_not_overwritten_by_the_next(images, monkeypatch):
    switch_on(monkeypatch)
    jobs = [job(images, Anchored(), rounds=6, epochs=1)]
    (_, plain), (engine, replayed) = trained(jobs, graphs=False), trained(jobs, graphs=True)
    assert engine.exchange.recorded["private"].graph
    assert all(all(map(torch.equal, one, other)) for (one, _), (other, _) in zip(plain, replayed, strict=True))


def test_a_step_that_comes_at_the_same_place_for_another_time_has_its_own_batches(images):
    one = job(images, Changing(), rounds=3, epochs=1)
    stacked, serial = Stacked([one]), Serial(one)
    for _ in range(3):
        stacked.round()
        serial.round()
    for k, client in enumerate(serial.clients):
        for name, expected in client.models["private"].named_parameters():
            torch.testing.assert_close(stacked.stacks[0].weights["private"][name][k], expected)


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn: client, role, round, split and for which time in the round."""
    found, schedule = [], chunk.schedule

    def counted(seed, client, role, round, **about):
        found.append((client, role, round, about["split"], about["again"]))
        return schedule(seed, client, role, round, **about)

    monkeypatch.setattr(chunk, "schedule", counted)
    return found


@pytest.mark.parametrize("name", ["fedekd", "second-opinion", "fedrep"])
def test_the_next_round_is_drawn_before_it_begins_and_every_round_once(images, name, drawn):
    engine = Stacked([job(images, methods.get(name), rounds=3, epochs=1)])
    engine.round()
    assert {round for _, _, round, *_ in drawn} == {0, 1}
    for _ in range(2):
        engine.round()
    assert len(drawn) == len(set(drawn))
    assert {round for _, _, round, *_ in drawn} == {0, 1, 2}


def test_nothing_is_drawn_ahead_for_a_step_that_does_not_come_again(images, drawn):
    engine = Stacked([job(images, Anonymous(), rounds=4, epochs=1)])
    for _ in range(4):
        engine.round()
    assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("fedekd", 0), ("fedekd-half", 0), ("fedekd-permuted", 1), ("fedekd@shuffled", 2), ("fedtype", 2), ("fml", 0)],
)
def test_random_numbers_are_drawn_for_the_variants_that_read_them(name, drawn):
    assert methods.get(name).drawn == drawn


def test_a_gate_of_ones_own_may_read_random_numbers(images):
    @dataclass(frozen=True)
    class Dropping(FedeKD):
        """Drops half of the samples"""

        name = "dropping"

        def trust(self, batch):
            return super().trust(batch) * (batch.uniform[..., 0] < 0.5)

    assert Dropping().drawn == 1
    Stacked([job(images, Dropping(), rounds=1, epochs=1)]).round()
