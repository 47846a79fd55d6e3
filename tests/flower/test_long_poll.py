"""A question waits for a message; everything else passes as if nobody stood there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedekd.flower.server import middleware
from fedekd.flower.server.middleware import QUESTION, LongPoll


class Post:
    """An app with one letter box: empty answers have no body, as an empty protobuf has none."""

    def __init__(self, status: int = 200) -> None:
        self.letter, self.asked, self.status, self.bodies = b"", 0, status, []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        if scope["path"] == "/v1/runtime/push-messages":
            self.letter = body
        else:
            self.asked += 1
            self.bodies.append(body)
        found = self.letter if scope["path"] == QUESTION else b""
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": found})


class Call:
    """One request, whose sender can hang up."""

    def __init__(self, app: LongPoll, path: str, body: bytes = b"who") -> None:
        self.sent: list[dict[str, Any]] = []
        self.events = [
            {"type": "http.request", "body": body[:1], "more_body": True},
            {"type": "http.request", "body": body[1:]},
        ]
        if path != QUESTION:
            self.events = [{"type": "http.request", "body": body}]
        self.hung_up = asyncio.Event()
        self.task = asyncio.ensure_future(app({"type": "http", "path": path}, self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        if self.events:
            return self.events.pop(0)
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "LOOK", 0.01)


async def settle() -> None:
    await asyncio.sleep(0.1)


def test_a_question_is_answered_when_a_message_comes() -> None:
    async def story() -> None:
        post = Post()
        app = LongPoll(post)
        question = Call(app, QUESTION)
        await settle()
        assert not question.task.done()
        assert post.asked == 1  # it waits without asking the app
        await Call(app, "/v1/runtime/push-messages", b"letter").task
        await asyncio.wait_for(question.task, 10)
        assert question.body == b"letter"
        assert post.bodies == [b"who", b"who"]
        assert [event["type"] for event in question.sent] == ["http.response.start", "http.response.body"]

    asyncio.run(story())


def test_one_that_hung_up_takes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        post = Post()
        app = LongPoll(post)
        question = Call(app, QUESTION)
        await settle()
        question.hung_up.set()
        await asyncio.wait_for(question.task, 10)
        await Call(app, "/v1/runtime/push-messages", b"letter").task
        await settle()
        assert post.asked == 1
        assert question.sent == []

    asyncio.run(story())


def test_waiting_ends_with_the_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "HOLD", 0.05)

    async def story() -> None:
        question = Call(LongPoll(Post()), QUESTION)
        await asyncio.wait_for(question.task, 10)
        assert question.sent[0]["status"] == 200
        assert question.body == b""

    asyncio.run(story())


def test_a_server_that_ends_gives_the_empty_answer() -> None:
    async def story() -> None:
        question = Call(LongPoll(Post()), QUESTION)
        await settle()
        question.task.cancel()
        await asyncio.wait_for(question.task, 10)
        assert question.sent[0]["status"] == 200

    asyncio.run(story())


@pytest.mark.parametrize("status", [401, 500])
def test_an_error_is_answered_at_once(status: int) -> None:
    async def story() -> None:
        question = Call(LongPoll(Post(status)), QUESTION)
        await asyncio.wait_for(question.task, 10)
        assert question.sent[0]["status"] == status

    asyncio.run(story())


def test_other_requests_pass() -> None:
    async def story() -> None:
        call = Call(LongPoll(Post()), "/v1/fleet/send-node-heartbeat")
        await asyncio.wait_for(call.task, 10)
        assert call.sent[0]["status"] == 200

    asyncio.run(story())
