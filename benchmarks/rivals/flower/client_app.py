"""A client: trains the model that it receives on its own images, or tests it."""

from __future__ import annotations

import functools
import json
import os

import job
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@functools.cache
def _given() -> tuple[job.Spec, dict]:
    spec = job.Spec(**json.loads(os.environ[job.ENVIRONMENT]))
    return spec, job.load(spec.data)


def _received(message: Message, spec: job.Spec):
    model = job.make_model(spec)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    spec, arrays = _given()
    model = _received(message, spec)
    x, y = job.samples(arrays, "train", context.node_config["partition-id"])
    job.train(model, x, y, spec)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    spec, arrays = _given()
    client = context.node_config["partition-id"]
    x, y = job.samples(arrays, "test", client)
    accuracy = job.accuracy(_received(message, spec), x, y, spec)
    metrics = MetricRecord(
        {"num-examples": len(x), "client": client, "accuracy": accuracy, "threads": torch.get_num_threads()}
    )
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
