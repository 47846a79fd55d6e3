"""The app beside the SuperLink: Flower's grid as the post, and the rounds run over it."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedekd.errors import FedekdError
from fedekd.flower import wire
from fedekd.flower.atomic import write_text
from fedekd.flower.codes import Code
from fedekd.flower.logs import log_to
from fedekd.flower.wire import Letter

app = ServerApp()
log = logging.getLogger("fedekd.server")
TYPES = {"join": "query.join", "visit": "train"}
FAULTS = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB)
EXTRA = 60.0  # seconds that a message lives beyond the deadline


class GridPost:
    """Letters through Flower. Its own waiting sleeps three seconds at a time and may never end: ours does not."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self.grid, self.deadline = grid, deadline
        self.sent: dict[str, int] = {}
        self.one_by_one = False

    def online(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, node: int, kind: str, letter: Letter) -> None:
        message = Message(wire.to_records(letter), node, TYPES[kind], ttl=self.deadline + EXTRA)
        for number in self.grid.push_messages([message]):
            if number:
                self.sent[number] = node

    def receive(self) -> list[tuple[int, Letter | None]]:
        """Flower raises for bytes that are no message, and the answers beside it are lost: each is then asked for
        again, and fetched alone, until it is known whose it was."""
        found: list[tuple[int, Letter | None]] = []
        for letters in [[one] for one in self.sent] if self.one_by_one else [list(self.sent)] if self.sent else []:
            try:
                replies = list(self.grid.pull_messages(letters))
            except httpx.HTTPError:
                raise
            except Exception as error:
                log.warning("an answer cannot be read (%s)", type(error).__name__)
                broken = Letter({"code": int(Code.FAULT)}) if len(letters) == 1 else None
                found += [(self.sent.pop(one), broken) for one in letters]
                self.one_by_one = True
                continue
            for reply in replies:
                node = self.sent.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    found.append((node, self._read(reply)))
        return found

    def _read(self, reply: Message) -> Letter | None:
        if reply.has_error():
            code = reply.error.code
            log.warning("node %d: Flower's error %d", reply.metadata.src_node_id, code)
            return Letter({"code": int(Code.FAULT)}) if code in FAULTS else None
        try:
            return wire.from_records(reply.content)
        except FedekdError:
            return Letter({"code": int(Code.FAULT)})

    def forget(self) -> None:
        self.sent.clear()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedekd.flower.post import TooFew
    from fedekd.flower.rounds import Rounds
    from fedekd.flower.schema import Schema
    from fedekd.flower.server_file import read_server

    file = Path(str(context.run_config["server-file"]))
    server = read_server(file)
    log_to(server.state / "log")
    try:
        if server.schema is None:
            raise FedekdError(f"{file} names no `schema`; make one with `fedekd site schema`")
        expected = max(server.min_sites, len(list(server.nodes.glob("*.pub"))))
        Rounds(server, Schema.read(server.schema), GridPost(grid, server.deadline), expected).run()
    except TooFew as error:
        log.error("%s", error)
        raise
    except FedekdError as error:  # what trying again will not mend
        log.error("%s", error)
        left = {"method": server.method, "rounds": server.rounds, "complete": False, "error": str(error)}
        write_text(server.state / "report.json", json.dumps(left, indent=1) + "\n")
        raise
