"""Jobs for both engines, and whether these agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedekd import methods
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from tiny import TRAINING


def outputs_of(clients) -> torch.Tensor:
    return torch.cat([c.outputs("private", c.rows["test"])[0].flatten() for c in clients])


ROUGH = {"fccl": 1e-2}
"""Where a change of the weights by 1e-8 changes outputs by more than 1e-3: FCCL's loss does not see their scale."""


def compare(jobs, shrink_stages=None, **options):
    stacked = Stacked(jobs, **options)
    for stack in stacked.stacks:
        stack.shrink_stages = shrink_stages
    for _ in range(TRAINING.rounds):
        stacked.round()
    values = stacked.evaluate()
    for j, one in enumerate(jobs):
        serial = Serial(one)
        for _ in range(TRAINING.rounds):
            serial.round()
        assert values[j] == pytest.approx(serial.evaluate()[0], abs=1e-4)
        ours = outputs_of(stacked.clients_of(j))
        assert torch.allclose(ours, outputs_of(serial.clients), atol=ROUGH.get(one.method.name, 1e-3))
        assert stacked.doors[j].bytes_up == serial.door.bytes_up
        assert stacked.doors[j].bytes_down == serial.door.bytes_down
        assert len(stacked.trust[j]) == len(serial.trust[0])
        for ours_, theirs in zip(stacked.trust[j], serial.trust[0], strict=True):
            for own, same in zip((ours_, *ours_["clients"]), (theirs, *theirs["clients"]), strict=True):
                assert (own is None) == (same is None)
                if own is not None:
                    assert own["mean"] == pytest.approx(same["mean"], abs=1e-3)
                    assert sum(own["histogram"]) == sum(same["histogram"])


TRAINED = [name for name, method in methods.known().items() if method.roles and method.stacks]


def with_public(federation):
    """The rows of one client for everybody, and the others for themselves."""
    first, *rest = federation.clients
    return replace(federation, clients=tuple(rest), names=federation.names[1:], public=first.train)


def rows_for(name, federation):
    return with_public(federation) if methods.get(name).public else federation
