"""CUDA graphs without a GPU: what is done while one is captured is noted and undone, and done again at each replay.

As on a GPU, a replay writes into the tensors that the capture made, and calls no Python of the engine. It cannot show
what shares memory with other graphs, nor what runs at the same time.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedekd.engines import cuda_graphs


class Graph:
    def __init__(self):
        self.calls = []

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, made in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(pytree.tree_leaves(made), pytree.tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old is not new and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Noted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls, self.before = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for declared, given in zip(func._schema.arguments, args, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                for tensor in pytree.tree_leaves(given):
                    if isinstance(tensor, Tensor):
                        self.before.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, made))
        return made


@contextmanager
def capturing(graph, pool):
    with Noted() as noted:
        yield
    with torch.no_grad():
        for tensor, before in reversed(noted.before.values()):
            tensor.copy_(before)
    graph.calls = noted.calls


def switch_on(monkeypatch):
    """For what is recorded around a round's steps; the steps themselves run as they are."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda_graphs, "capturing", capturing)
    monkeypatch.setattr("fedekd.engines.chunk.Chunk._worth_capturing", lambda *_: False)
