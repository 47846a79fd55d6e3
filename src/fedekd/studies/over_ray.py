"""Work items over a Ray cluster, whose nodes need fedekd and the data; the driver stores the records."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedekd.errors import FedekdError
from fedekd.runs import answers
from fedekd.runs.execution import Failure, Outcome, Started
from fedekd.runs.observers import Observer
from fedekd.runs.records import Record
from fedekd.runs.store import Store
from fedekd.runs.worker import WorkItem, work


def over_ray(items: Sequence[WorkItem], store: Store, address: str, workers: int) -> Iterator[Outcome]:
    """``address`` is a running cluster's ("auto", "ray://host:10001"), or "local" for one of ``workers`` cores here."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise FedekdError("--ray needs Ray, which is not installed; pip install 'fedekd[ray]'") from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address, workers)
    try:
        gpus = int(any(cell.first.device.startswith("cuda") for item in items for cell in item.cells))
        on_node = ray.remote(_on_node).options(num_returns="streaming", num_cpus=1, num_gpus=gpus)
        records = {record["key"]: record for record in store.records()}
        streams: dict[Any, WorkItem] = {}
        for item in items:
            alone = {run.local_key for run in item.runs} & records.keys()
            streams[on_node.remote(item, [records[key] for key in alone])] = item
        while streams:
            ready, _ = ray.wait(list(streams), num_returns=1)
            for stream in ready:
                yield from _next(ray, stream, streams, store)
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str, workers: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FedekdError(f"cannot reach a Ray cluster at {address!r}: {error}; `--ray local` starts one") from None


def _next(ray: Any, stream: Any, streams: dict[Any, WorkItem], store: Store) -> Iterator[Outcome]:
    try:
        outcome: Outcome
        outcome, rows = ray.get(next(stream))
    except StopIteration:
        del streams[stream]
        return
    except Exception as error:
        yield from streams.pop(stream).failed(error)
        return
    streams[stream] = streams[stream].after(outcome)
    if not isinstance(outcome, (Failure, Started)):
        if rows is not None:
            answers.put(store.folder, outcome["key"], rows)
        store.add(outcome)
    yield outcome


def _on_node(item: WorkItem, known: Sequence[Record]) -> Iterator[tuple[Outcome, bytes | None]]:
    """Each outcome with the file of answers that belongs to a record, where there is one."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        for record in known:
            store.add(record)
        for outcome in work(item, store, Observer()):
            if isinstance(outcome, (Failure, Started)):
                yield outcome, None
            else:
                yield outcome, answers.content(store.folder, outcome["key"])
