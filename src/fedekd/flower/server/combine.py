"""How the sites' models become one: the mean, or what a few bad sites cannot bend.

The mean is the simulation's own. Median, trimmed mean and Krum are Flower's strategies, handed the checked models.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedekd.errors import unknown
from fedekd.exchange import Mean, Message, average
from fedekd.flower.settings import COMBINATIONS

TRIM = 0.2  # cut off each end, and never less than one site where there are three


def combination(name: str) -> Mean:
    if name not in COMBINATIONS:
        raise unknown("combine", name, COMBINATIONS)
    if name == "mean":
        return average
    return lambda stack, weights: _by_strategy(name, stack, len(weights))


def _by_strategy(name: str, stack: Message, sites: int) -> dict[str, Tensor]:
    """Floating-point tensors through Flower's strategy; counters from the first site, as in the mean."""
    from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
    from flwr.app.message import make_message

    floating = [key for key, tensor in stack.items() if tensor.is_floating_point()]
    if not floating:
        return {key: tensor[0].clone() for key, tensor in stack.items()}
    replies, nowhere = [], Metadata(0, "", 0, 0, "", "", 0.0, 1.0, "train")  # a strategy takes messages, sent or not
    for site in range(sites):
        arrays = ArrayRecord({key: Array(stack[key][site].numpy()) for key in floating})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        replies.append(make_message(metadata=nowhere, content=content))
    combined, _ = _strategy(name, sites).aggregate_train(0, replies)
    assert combined is not None
    found = {key: torch.from_numpy(np.asarray(array.numpy())).to(stack[key].dtype) for key, array in combined.items()}
    return {key: found[key] if key in found else tensor[0].clone() for key, tensor in stack.items()}


def _strategy(name: str, sites: int):  # type: ignore[no-untyped-def]
    from flwr.serverapp import strategy

    if name == "median":
        return strategy.FedMedian()
    if name == "trimmed":
        one = (1 + 1e-9) / sites  # of a hair more than one site, or rounding would cut none
        return strategy.FedTrimmedAvg(beta=max(TRIM, one) if sites > 2 else 0.0)
    return strategy.Krum(num_malicious_nodes=max(0, (sites - 3) // 2))  # the most that Krum can bear
