"""The server where it does more than average: what a method's ``combine`` may know, and training on public rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd import models
from fedekd.engines.client import Client
from fedekd.engines.job import SERVER, Job, Rows
from fedekd.exchange import Message
from fedekd.federation import Split
from fedekd.methods.base import Exchange
from fedekd.robust import combination


def server_facts(job: Job, data: Rows) -> dict[str, Any]:
    """What a method's ``combine`` may know beside the uploads."""
    federation = job.federation
    public = torch.from_numpy(federation.public).to(data.x.device)

    def module(role: str, client: int) -> torch.nn.Module:
        root, dataset = job.method.root(role), federation.dataset
        built = models.build(root, job.factory(root), dataset.x.shape[1:], dataset.outputs, job.seed, client)
        return built.to(data.x.device)

    rows = (data.scale.inputs(data.x[public]), data.y[public]) if len(public) else None
    facts = {"clients": len(federation.clients), "public": rows, "module": module, "seed": job.seed}
    return {**facts, "average": combination(job.training.combine)}


class ServerClient(Client):
    """The server where it trains a model itself: it has the public rows and nobody's own."""

    def __init__(self, job: Job, rows: Rows | None = None) -> None:
        super().__init__(job, 0, SERVER, rows)
        self.name = "server"

    def _rows(self, split: Split) -> dict[str, Tensor]:
        none = np.empty(0, np.int64)
        return super()._rows(Split(none, none, none))

    def _begin(self) -> dict[str, Any]:
        return {}

    def refined(self, step: Exchange, uploads: Iterable[Message], answer: Message, round: int) -> dict[str, Tensor]:
        """The combined model after training on public rows, with the uploaded ones as its teachers."""
        role, train = step.target, step.refine
        assert role is not None
        assert train is not None
        teachers = []
        for one in uploads:
            self._load(role, one)
            teachers.append(self.outputs(role, self.rows[train.split])[0])
        self.teachers = torch.stack(teachers)
        self._load(role, answer)
        self.perform(train, round)
        self.teachers = None
        state = self.models[role].state_dict()
        return {name: state[name].clone() for name in answer}
