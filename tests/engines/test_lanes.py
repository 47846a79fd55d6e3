"""Which lane a chunk trains in. What lanes do on a GPU is checked there: benchmarks/gpu_check.py --lanes."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedekd import methods
from fedekd.engines.chunk import Chunk
from fedekd.engines.job import TrustLog
from fedekd.engines.lanes import Lane, Lanes
from fedekd.engines.stacked import Stacked
from fedekd.methods import Exchange, Method, Remember, Train
from tiny import job

CPU = torch.device("cpu")


def test_a_chunk_goes_to_the_lane_that_has_the_least_to_do_in_its_step():
    lanes = Lanes(CPU, 3, graphs=False)
    assert len(lanes) == 1  # of a CPU
    lanes.lanes += [Lane(CPU, k, graphs=False) for k in (1, 2)]
    first, second, third = lanes.lanes
    assert [lanes.least("forward", work) for work in (9, 5, 3, 1, 2)] == [first, second, third, third, third]
    assert lanes.least("forward", 1) is second
    assert lanes.least("back", 1) is first


def test_what_lacks_room_trains_in_smaller_chunks_and_is_counted_once(images, monkeypatch):
    """In the second step of the last chunk, a gated one, there is no room."""
    jobs = [job(images, methods.get("fedekd"), seed) for seed in (0, 1)]
    whole, cut = (Stacked(jobs, chunk=n * len(images.clients)) for n in (2, 1))
    advance, calls = Chunk._advance, list[Chunk]()

    def advances(chunk, segment):
        if chunk.engine is cut.stacks[0]:
            calls.append(chunk)
            if len(set(map(id, calls))) == 4 and calls.count(chunk) == 2:
                raise torch.OutOfMemoryError("no room")
        advance(chunk, segment)

    monkeypatch.setattr(Chunk, "_advance", advances)
    for engine in (whole, cut):
        engine.round()
    assert len(set(map(id, calls))) > 4
    for a, b in zip(whole.trust, cut.trust, strict=True):
        assert sum(a[0]["histogram"]) == sum(b[0]["histogram"]) > 0
        assert a[0]["mean"] == pytest.approx(b[0]["mean"], rel=1e-4)
    for role, tree in whole.stacks[0].weights.items():
        for name, w in tree.items():
            torch.testing.assert_close(cut.stacks[0].weights[role][name], w)


class Stream:
    """Writes down for whom it waits."""

    def __init__(self, name: str, waits: list[str]) -> None:
        self.name, self.waits = name, waits

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(f"{self.name} for {other.name}")


@pytest.mark.parametrize("draws", [False, True])
def test_lanes_wait_for_what_was_asked_before_and_what_comes_later_for_them(monkeypatch, draws):
    """Where a loss draws from torch's own generator, they train one after another."""
    waits: list[str] = []
    lanes, main = Lanes(CPU, 1, graphs=False), Stream("main", waits)
    lanes.lanes += [Lane(CPU, 1, graphs=False)]
    for k, lane in enumerate(lanes.lanes):
        lane.stream = Stream(f"lane {k}", waits)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(Lanes, "_draws", lambda self: draws)
    with lanes.side_by_side():
        for lane in lanes.lanes:
            with lanes.within(lane):
                waits.append("trains")
    joined = ["main for lane 0", "main for lane 1"]
    between = joined if draws else []
    assert waits == ["lane 0 for main", "trains", *between, "lane 1 for main", "trains", *between, *joined]


def test_a_chunk_stays_in_its_lane_until_room_lacks(images, monkeypatch):
    jobs = [job(images, methods.get("local"), seed) for seed in (0, 1)]
    (engine,) = (whole := Stacked(jobs, chunk=len(images.clients))).stacks
    engine.lanes.lanes += [Lane(CPU, 1, graphs=False)]
    whole.round()
    before = {key: chunk.lane for key, (_, chunk) in engine.chunks.items()}
    assert len(set(map(id, before.values()))) == 2
    engine.lanes.least("another step", 1000)
    whole.round()
    assert {key: chunk.lane for key, (_, chunk) in engine.chunks.items()} == before

    advance, left = Chunk._advance, [1]

    def advances(chunk, segment):
        if left and left.pop():
            raise torch.OutOfMemoryError("no room")
        advance(chunk, segment)

    monkeypatch.setattr(Chunk, "_advance", advances)
    whole.round()
    assert len(engine.lanes) == 1
    assert engine.limit == len(images.clients)
    assert {id(chunk.lane) for _, chunk in engine.chunks.values()} == {id(engine.lanes.lanes[0])}


def test_a_chunk_that_nobody_needs_gives_its_room_to_the_next(images, monkeypatch):
    """Where other clients train in every round, no chunk comes again."""
    engine = Stacked([job(images, methods.get("fedavg"), participation=0.5, rounds=3)], chunk=1)
    made, alive, init = list[Any](), list[int](), Chunk.__init__

    def makes(chunk, *about):
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        init(chunk, *about)
        made.append(weakref.ref(chunk))

    monkeypatch.setattr(Chunk, "__init__", makes)
    for _ in range(2):
        engine.round()
    assert len(alive) > 2
    assert set(alive) == {0}


def test_counts_come_back_of_the_models_that_are_named():
    log = TrustLog(3, CPU)
    log.add(torch.tensor([[0.1], [0.5], [0.9]]), torch.arange(3))
    before, first = log.copy(), log.rows()
    log.add(torch.tensor([[0.3], [0.3], [0.3]]), torch.arange(3))
    then = log.rows()
    log.restore(before, [1])
    assert torch.equal(log.rows()[1], first[1])
    assert torch.equal(log.rows()[[0, 2]], then[[0, 2]])


@dataclass(frozen=True)
class Pushed(Method):
    """Has an `if` on a parameter that differs, for clients that know something."""

    push: float = 0.0
    roles = ("private",)

    def steps(self, round):
        return Train(("private",), self.loss, gradients=True), Remember(self.keep), Exchange("private")

    def loss(self, batch):
        if "norm" in batch.memory and self.push > 0.5:
            return 2 * batch.supervised("private")
        return batch.supervised("private")

    def keep(self, batch):
        return {"norm": sum(g.square().sum() for g in batch.gradients["private"].values())}


def test_gradients_outlast_their_group(images):
    """It is split by value in the middle of a step, when some of its members have trained."""
    jobs = [job(images, Pushed(k / 5), k, participation=0.34, rounds=3) for k in range(6)]
    together, apart = Stacked(jobs), [Stacked([one]) for one in jobs]
    for engine in (together, *apart):
        for _ in range(3):
            engine.round()
    (stack,) = together.stacks
    assert len(stack.groups) == len(jobs)
    for i, member in enumerate(stack.members):
        known = (
            one.state_of(k)["memory"].get("norm")
            for one, k in ((stack, i), (apart[member.job].stacks[0], member.client))
        )
        torch.testing.assert_close(*known)
