"""How answers come in through Flower, whatever a site sends or fails to send."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from village import make_server

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server_app import GridTransport


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes no message outside of a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """As Flower's: bytes that are no message raise, and half an answer is waited for."""

    def __init__(self, broken: set[int], half: set[int]) -> None:
        self.broken, self.half, self.waiting = broken, half, dict[str, int]()
        self.over = threading.Event()

    def push_messages(self, messages: list[Message]) -> list[str]:
        number = str(len(self.waiting))
        self.waiting[number] = messages[0].metadata.dst_node_id
        return [number]

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        nodes = {number: self.waiting[number] for number in numbers}
        if self.broken & set(nodes.values()):
            raise ValueError("no such object")
        if self.half & set(nodes.values()):
            self.over.wait(60)
        return [self.reply(number, node) for number, node in nodes.items()]

    def reply(self, number: str, node: int) -> Message:
        about = Metadata(0, "", node, 0, number, "", 0.0, 60.0, "train")
        return make_message(metadata=about, content=wire.to_records(Payload({"code": 0, "name": str(node)})))


def test_broken_and_half_sent_answers_cost_the_others_nothing(tmp_path: Path) -> None:
    grid = Grid(broken={2}, half={4})
    post, heard = GridTransport(grid, make_server(tmp_path)), dict[int, int]()
    for node in (1, 2, 3, 4):
        post.send(node, "visit", Payload({}))
    end = time.monotonic() + 30
    while len(heard) < 3 and time.monotonic() < end:
        heard |= {node: int(reply.words["code"]) for node, reply in post.receive() if reply}
        post.wait(0.01)
    assert heard == {1: 0, 2: int(StatusCode.UNREADABLE), 3: 0}
    post.forget()
    grid.over.set()
    post.wait(0.1)
    assert post.receive() == [], "what comes too late is not heard"


@pytest.mark.parametrize(("faults", "code"), [(3, 0), (10**6, int(StatusCode.UNREADABLE))])
def test_an_answer_that_the_superlink_fails_at_is_its_sites_alone(tmp_path: Path, monkeypatch, faults, code) -> None:
    monkeypatch.setattr("fedekd.flower.server_app.FETCH", 0.01)
    grid, left = Grid(set(), set()), [faults]
    whole = grid.pull_messages

    def failing(numbers: list[str]) -> list[Message]:
        if grid.waiting[numbers[0]] == 2 and left[0] > 0:
            left[0] -= 1
            httpx.Response(500, request=httpx.Request("POST", "https://localhost")).raise_for_status()
        return whole(numbers)

    grid.pull_messages = failing  # type: ignore[method-assign]
    post, heard = GridTransport(grid, make_server(tmp_path)), dict[int, int]()
    for node in (1, 2):
        post.send(node, "visit", Payload({}))
    end = time.monotonic() + 30
    while len(heard) < 2 and time.monotonic() < end:
        heard |= {node: int(reply.words["code"]) for node, reply in post.receive() if reply}
        post.wait(0.01)
    assert heard == {1: 0, 2: code}


def test_a_superlink_that_is_gone_is_no_fault_of_a_site(tmp_path: Path) -> None:
    grid = Grid(set(), set())
    grid.pull_messages = lambda _: (_ for _ in ()).throw(httpx.ConnectError("gone"))  # type: ignore[method-assign]
    post = GridTransport(grid, make_server(tmp_path))
    post.send(1, "visit", Payload({}))
    while post.come.empty():
        post.wait(0.01)
    with pytest.raises(httpx.ConnectError):
        post.receive()


@pytest.mark.parametrize(
    ("code", "said", "code_told"),
    [
        (ErrorCode.NODE_UNAVAILABLE, "broke off before it answered", None),
        (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "failed; its own log says why", StatusCode.FAULT),
        (99, "failed (Flower's error 99)", None),
    ],
)
def test_flowers_errors_are_told_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, said: str, code_told: StatusCode | None
) -> None:
    class Failing(Grid):
        def reply(self, number: str, node: int) -> Message:
            about = Metadata(0, "", 1, 0, number, "", 0.0, 60.0, "train")  # from the SuperLink, which is node 1
            return make_message(metadata=about, error=Error(code, "secret"))

    post = GridTransport(Failing(set(), set()), make_server(tmp_path))
    post.names = {71: "south"}
    with caplog.at_level("WARNING", "fedekd.server"):
        for node in (71, 72):
            post.send(node, "visit", Payload({}))
        while post.come.qsize() < 2:
            post.wait(0.01)
    assert sorted(caplog.messages) == [f"node 72 {said}", f"south {said}"]
    told = {node: reply and reply.words["code"] for node, reply in post.receive()}
    assert told == dict.fromkeys((71, 72), None if code_told is None else int(code_told))


@pytest.mark.parametrize("answer", [[], [None]])
def test_a_message_that_flower_does_not_take_will_not_be_answered(tmp_path: Path, answer: list[None]) -> None:
    grid = Grid(set(), set())
    grid.push_messages = lambda _: answer  # type: ignore[method-assign]
    post = GridTransport(grid, make_server(tmp_path))
    post.send(7, "visit", Payload({}))
    assert post.receive() == [(7, None)]


@pytest.mark.parametrize("word", [b"bytes", [1, 2], ["a"]])
def test_words_are_text_and_numbers(word) -> None:
    records = wire.to_records(Payload({"code": 0}))
    records["words"] = ConfigRecord({"code": 0, "more": word})
    with pytest.raises(FedekdError, match="cannot be read"):
        wire.from_records(RecordDict(records))
