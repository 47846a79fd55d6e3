"""Which lane a chunk trains in. What lanes do on a GPU is checked there: benchmarks/gpu_check.py --lanes."""

import pytest
import torch

from fedekd import methods
from fedekd.engines.chunk import Chunk
from fedekd.engines.lanes import Lane, Lanes
from fedekd.engines.stacked import Stacked
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
