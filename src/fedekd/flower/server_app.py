"""The app beside the SuperLink: Flower's grid as the transport, and the rounds run over it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import httpx
from flwr.app import Context, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.saved_state import write_text
from fedekd.flower.server import control
from fedekd.flower.settings import ServerSettings, read_server
from fedekd.flower.setup.certificates import local_address
from fedekd.flower.supervise.logs import log_to

app = ServerApp()
log = logging.getLogger("fedekd.server")
TYPES = {"join": "query.join", "visit": "train", "masking": "query.masking", "end": "query.end"}
FAULTS = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB)
MEANINGS = {
    ErrorCode.UNKNOWN: "failed before it answered",
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "cannot load its app; its own log says why",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "failed; its own log says why",
    ErrorCode.MESSAGE_UNAVAILABLE: "did not get the message in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "sent an answer that is lost or came too late",
    ErrorCode.NODE_UNAVAILABLE: "broke off before it answered",
    ErrorCode.INVALID_FAB: "cannot load its app; its own log says why",
    ErrorCode.CLIENT_APP_CRASHED: "crashed; its own log may say why",
}
EXTRA = 60.0  # seconds that a message lives beyond the deadline
FETCH = 0.3  # seconds between two looks for an answer
FAULTY = 10  # times that the SuperLink may fail to hand one out, before it counts as unreadable
UNREADABLE = Payload({"code": int(StatusCode.UNREADABLE)})


class GridTransport:
    """Payloads through Flower. Its own waiting sleeps three seconds at a time and may never end: ours does not.

    Each answer is fetched by a thread of its own, for Flower waits, for minutes or hours, for the rest of one whose
    sender died while it was sent, and raises for bytes that are no message: neither must cost the other sites anything.
    """

    def __init__(self, grid: Grid, server: ServerSettings) -> None:
        self.grid, self.server, self.deadline = grid, server, server.deadline
        self.names: dict[int, str] = {}
        self.sent: dict[str, int] = {}
        self.come: SimpleQueue[tuple[str, Payload | httpx.HTTPError | None]] = SimpleQueue()

    def online(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def admitted(self) -> dict[int, str]:
        try:
            with control.connected(local_address(self.server), self.server.ca) as superlink:
                self.names = superlink.admitted()
                return self.names
        except control.Unreachable as error:
            raise ConnectionError(str(error)) from None  # no error of the settings: the next run may well go through

    def send(self, node: int, kind: str, payload: Payload) -> None:
        message = Message(wire.to_records(payload), node, TYPES[kind], ttl=self.deadline + EXTRA)
        number = next(iter(self.grid.push_messages([message])), None)
        if number:
            self.sent[number] = node
            threading.Thread(target=self._fetch, args=(number, node), daemon=True).start()
        else:
            log.warning("Flower did not take the message to %s", self._name(node))
            self.sent[untaken := f"untaken {time.monotonic_ns()}"] = node
            self.come.put((untaken, None))

    def _name(self, node: int) -> str:
        """A site's key is named before the site itself has said who it is."""
        return self.names.get(node) or f"node {node}"

    def _fetch(self, number: str, node: int) -> None:
        faults = 0
        while number in self.sent:
            try:
                for reply in self.grid.pull_messages([number]):
                    self.come.put((number, self._read(reply, node)))
                    return
            except httpx.TransportError as error:
                self.come.put((number, error))
                return
            except Exception as error:
                faults += 1
                if isinstance(error, httpx.HTTPStatusError) and faults < FAULTY:
                    time.sleep(FETCH)
                    continue
                log.warning("an answer of %s cannot be read (%s)", self._name(node), type(error).__name__)
                self.come.put((number, UNREADABLE))
                return
            time.sleep(FETCH)

    def receive(self) -> list[tuple[int, Payload | None]]:
        found = []
        while not self.come.empty():
            number, reply = self.come.get()
            node = self.sent.pop(number, None)
            if node is None:
                continue  # forgotten in the meantime
            if isinstance(reply, httpx.HTTPError):
                raise reply
            found.append((node, reply))
        return found

    def _read(self, reply: Message, node: int) -> Payload | None:
        """``node`` was asked; an error may come from the SuperLink in its stead."""
        if reply.has_error():
            code = reply.error.code
            log.warning("%s %s", self._name(node), MEANINGS.get(code, f"failed (Flower's error {code})"))
            return Payload({"code": int(StatusCode.FAULT)}) if code in FAULTS else None
        try:
            return wire.from_records(reply.content)
        except FedekdError:
            return UNREADABLE

    def forget(self) -> None:
        self.sent.clear()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedekd.flower.protocol.schema import Schema
    from fedekd.flower.server.conversation import TooFew
    from fedekd.flower.server.secure_rounds import make_rounds
    from fedekd.flower.server.watched import WatchedTransport

    file = Path(str(context.run_config["server-file"]))
    server, finish = read_server(file), float(str(context.run_config["finish"]))
    log_to(server.state / "log")
    try:
        if server.schema is None:
            raise FedekdError(f"{file} names no `schema`; make one with `fedekd site schema`")
        transport = WatchedTransport(GridTransport(grid, server), server.state)
        expected = max(server.min_sites, len(transport.admitted()))
        rounds = make_rounds(server, Schema.read(server.schema), transport, expected)
        with transport.following(rounds):
            rounds.finish(finish) if finish else rounds.run()
    except TooFew as error:
        log.error("%s", error)
        raise
    except FedekdError as error:  # what trying again will not mend
        log.error("%s", error)
        if finish:  # its report stays
            raise
        left = {"method": server.method, "rounds": server.rounds, "complete": False, "error": str(error)}
        with contextlib.suppress(FedekdError):  # the disk may be full, and then the first error says so
            write_text(server.state / "report.json", json.dumps(left, indent=1) + "\n")
        raise
