"""What is done ahead of a round, and what a CUDA graph does in it. On a GPU: benchmarks/gpu_check.py --lanes."""

from __future__ import annotations

import operator
from contextlib import contextmanager

import pytest
import torch

from fedekd import methods
from fedekd.engines import chunk, cuda_graphs
from fedekd.engines.stacked import Stacked
from tiny import job


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


@pytest.mark.parametrize("name", ["fedekd", "second-opinion", "fedrep"])
def test_the_next_round_is_drawn_before_it_begins_and_every_round_once(images, name, monkeypatch):
    one, drawn = job(images, methods.get(name), rounds=3, epochs=1), []
    schedule = chunk.schedule

    def counted(seed, client, role, round, **about):
        drawn.append((client, role, round, about["split"], about["again"]))
        return schedule(seed, client, role, round, **about)

    monkeypatch.setattr(chunk, "schedule", counted)
    engine = Stacked([one])
    engine.round()
    assert {round for _, _, round, *_ in drawn} == {0, 1}
    for _ in range(2):
        engine.round()
    assert len(drawn) == len(set(drawn))
    assert {round for _, _, round, *_ in drawn} == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("fedekd", 0), ("fedekd-half", 0), ("fedekd-permuted", 1), ("fedekd@shuffled", 2), ("fedtype", 2), ("fml", 0)],
)
def test_random_numbers_are_drawn_for_the_variants_that_read_them(name, drawn):
    assert methods.get(name).drawn == drawn
