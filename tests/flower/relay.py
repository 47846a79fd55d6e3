"""A tiny Flower app for the tests of what surrounds an app: one array goes to every site and back, round by round.

The ServerApp keeps finished rounds in STATE/rounds, as fedekd's own does, and goes on from the last one.
"""

from __future__ import annotations

import errno
import json
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import http_grid

from fedekd.files import writing
from fedekd.flower.settings import VISITS_DONE, read_server, read_site

app = ClientApp()
server, idle, full, late = ServerApp(), ServerApp(), ServerApp(), ServerApp()
# Flower would wait minutes for the rest of an answer whose sender was killed while it was sent.
http_grid.pull_objects = partial(http_grid.pull_objects, max_time=3)


@app.train()
def add_one(message: Message, context: Context) -> Message:
    site = read_site(str(context.node_config["site-file"]))
    (site.state / "visits").open("a").write(f"{os.getpid()} {os.getppid()}\n")
    if (site.state / "fail").exists():
        raise RuntimeError("a secret of the site's")
    array = message.content["arrays"].to_numpy_ndarrays()[0]
    return Message(RecordDict({"arrays": ArrayRecord([array + 1])}), reply_to=message)


@server.main()
def rounds(grid: Grid, context: Context) -> None:
    settings = read_server(str(context.run_config["server-file"]))
    folder, log = settings.state / "rounds", settings.state / "log"
    folder.mkdir(exist_ok=True)
    (settings.state / "attempts").open("a").write(".")  # which is no progress
    done = sorted(folder.glob("*.npy"))
    value = np.load(done[-1]) if done else np.zeros(3, np.float32)
    for number in range(len(done) + 1, settings.rounds + 1):
        value = np.mean(_answers(grid, value, settings.min_sites, settings.deadline, settings.state), axis=0)
        partial = folder / "next.tmp"
        with open(partial, "wb") as file:
            np.save(file, value)
        os.replace(partial, folder / f"{number:04}.npy")
        (settings.state / VISITS_DONE).write_text(str(number))
        with log.open("a") as file:
            file.write(f"round {number} of {settings.rounds}\n")
    _write(settings.state, {"method": "relay", "complete": True, "rounds": settings.rounds, "sites": []})


@idle.main()
def nothing(grid: Grid, context: Context) -> None:
    """Ends at once, and leaves no report."""


@late.main()
def all_came(grid: Grid, context: Context) -> None:
    assert context.run_config["finish"] == "7.0"
    state = read_server(str(context.run_config["server-file"])).state
    _write(state, {"method": "relay", "complete": True, "sites": [{"name": "site0", "answered": True}]})


@full.main()
def no_room(grid: Grid, context: Context) -> None:
    state = read_server(str(context.run_config["server-file"])).state
    with writing(state / "state.next", "`state`"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _answers(grid: Grid, value: np.ndarray, sites: int, deadline: float, state: Path) -> list[np.ndarray]:
    end = time.monotonic() + deadline
    while len(nodes := list(grid.get_node_ids())) < sites:
        if time.monotonic() > end:
            raise RuntimeError(f"{len(nodes)} of {sites} sites")
        time.sleep(0.2)
    content = RecordDict({"arrays": ArrayRecord([value])})
    waiting = set(grid.push_messages([Message(content, node, MessageType.TRAIN) for node in nodes]))
    answers: list[np.ndarray] = []
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_content():
                answers.append(reply.content["arrays"].to_numpy_ndarrays()[0])
            elif reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                (state / "errors").open("a").write(f"{reply.error.reason!r}\n")
        time.sleep(0.1)
    if len(answers) < sites:
        raise RuntimeError(f"{len(answers)} of {sites} sites answered")
    return answers


def _write(state: Path, report: dict[str, object]) -> None:
    partial = state / "report.tmp"
    partial.write_text(json.dumps(report))
    os.replace(partial, state / "report.json")
