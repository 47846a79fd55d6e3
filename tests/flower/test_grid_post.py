"""Bytes of a site that are no message cost the others nothing."""

from __future__ import annotations

import httpx
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.task_identity import TaskIdentity

from fedekd.errors import FedekdError
from fedekd.flower import wire
from fedekd.flower.codes import Code
from fedekd.flower.server_app import GridPost
from fedekd.flower.wire import Letter


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes no message outside of a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """As Flower's: an answer is handed out once, and a broken one raises with all that were asked for beside it."""

    def __init__(self, broken: set[int]) -> None:
        self.broken, self.waiting, self.count = broken, dict[str, int](), 0

    def push_messages(self, messages: list[Message]) -> list[str]:
        self.count += 1
        self.waiting[str(self.count)] = messages[0].metadata.dst_node_id
        return [str(self.count)]

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        nodes = {number: self.waiting.pop(number) for number in numbers if number in self.waiting}
        if self.broken & set(nodes.values()):
            raise ValueError("no such object")
        return [self.reply(number, node) for number, node in nodes.items()]

    def reply(self, number: str, node: int) -> Message:
        about = Metadata(0, "", node, 0, number, "", 0.0, 60.0, "train")
        return make_message(metadata=about, content=wire.to_records(Letter({"code": 0, "name": str(node)})))


def test_a_broken_answer_is_found_out_and_the_others_are_heard() -> None:
    post = GridPost(Grid(broken={2}), 60.0)
    asked, heard = {1, 2, 3}, dict[int, Letter]()
    for _ in range(3):
        for node in asked:
            post.send(node, "visit", Letter({}))
        found = post.receive()
        heard |= {node: reply for node, reply in found if reply is not None}
        asked = {node for node, reply in found if reply is None}
    assert {node: reply.words["code"] for node, reply in heard.items()} == {1: 0, 2: int(Code.FAULT), 3: 0}


def test_a_superlink_that_is_gone_is_no_fault_of_a_site() -> None:
    grid = Grid(set())
    post = GridPost(grid, 60.0)
    post.send(1, "visit", Letter({}))
    grid.pull_messages = lambda _: (_ for _ in ()).throw(httpx.ConnectError("gone"))  # type: ignore[method-assign]
    with pytest.raises(httpx.ConnectError):
        post.receive()


@pytest.mark.parametrize("word", [b"bytes", [1, 2], ["a"]])
def test_words_are_text_and_numbers(word) -> None:
    records = wire.to_records(Letter({"code": 0}))
    records["words"] = ConfigRecord({"code": 0, "more": word})
    with pytest.raises(FedekdError, match="cannot be read"):
        wire.from_records(RecordDict(records))
