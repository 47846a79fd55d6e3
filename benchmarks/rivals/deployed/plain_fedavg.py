"""Flower as its documentation writes it: FedAvg of the private model, one training message per round."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    import torch

    from fedekd.models import private

    settings = json.loads(Path(str(context.node_config["settings"])).read_text())
    torch.set_num_threads(1)
    rows = np.load(settings["data"])
    x = torch.from_numpy(rows["x"]).float()[:, None] / 127.5 - 1
    y = torch.from_numpy(rows["y"])
    model = private(tuple(x.shape[1:]), 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    count = int(0.6 * len(x))
    for _ in range(settings["epochs"]):
        for batch in torch.randperm(count).split(settings["batch_size"]):
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": count})}
    return Message(RecordDict(records), reply_to=message)


class Timed(FedAvg):
    def __init__(self, sites: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        self.ends: list[float] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        replies = list(replies)
        if any(reply.has_error() for reply in replies):
            raise RuntimeError("a site failed")
        self.ends.append(time.time())
        return super().aggregate_train(server_round, replies)


@server.main()
def main(grid: Grid, context: Context) -> None:
    from fedekd.models import private

    settings = json.loads(Path(str(context.run_config["server-file"])).read_text())
    strategy = Timed(settings["sites"])
    start = ArrayRecord(private((1, settings["pixels"], settings["pixels"]), 10).state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=settings["rounds"])
    Path(settings["out"]).write_text(json.dumps({"ends": strategy.ends}))
