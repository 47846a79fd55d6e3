"""How letters reach the sites, and a conversation with all of them that always ends."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Code
from fedekd.flower.protocol.wire import Letter

PAUSE = 0.2  # seconds between two looks at the post


class TooFew(FedekdError):
    """Not enough sites for now; the run can be tried again and goes on after the last complete visit."""


class Post(Protocol):
    """Letters to nodes, and their answers."""

    def online(self) -> set[int]: ...
    def admitted(self) -> set[int]: ...  # whose keys are let in, online or not
    def send(self, node: int, kind: str, letter: Letter) -> None: ...
    def receive(self) -> list[tuple[int, Letter | None]]: ...  # None: this letter will not be answered
    def forget(self) -> None: ...  # answers to letters sent before are of no more use
    def wait(self, seconds: float) -> None: ...


class Talk(Protocol):
    """One round of questions: who is to be asked now, what becomes of an answer, whether all is said."""

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Letter]]: ...
    def take(self, node: int, reply: Letter | None) -> None: ...
    def done(self) -> bool: ...


def converse(post: Post, talk: Talk, seconds: float) -> bool:
    """Ask and listen until all is said; False if the time was up before."""
    until = time.monotonic() + seconds
    post.forget()
    while True:
        for node, kind, letter in list(talk.due(post.online())):
            post.send(node, kind, letter)
        for node, reply in post.receive():
            talk.take(node, reply)
        if talk.done():
            return True
        if time.monotonic() > until:
            return False
        post.wait(PAUSE)


def code_of(reply: Letter) -> Code:
    try:
        return Code(int(reply.words["code"]))
    except (KeyError, ValueError, TypeError):
        return Code.FAULT
