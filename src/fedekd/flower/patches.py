"""Every one of Flower's own names that fedekd replaces, and why; no other file changes anything of Flower's.

Each function is for one of Flower's processes, and is called in it before Flower's own work begins. A name that Flower
no longer has is an error at once, not a patch without effect; tests/flower/test_patches.py holds what else of Flower
each of them relies on.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.supervise.processes import end_with

PAUSE = 1.0  # seconds before a SuperNode asks the server again
LOOK = 0.1  # seconds between two looks at what is on this machine
PATIENCE = 60.0  # seconds in which no heartbeat gets through, before a SuperNode is started anew
SKIPPED, BEATING = "Heartbeat failed", "Heartbeat taken again"  # in a SuperNode's log
BEAT = 10  # seconds, the least that Flower allows; after two of them without a sign the site counts as away


def patch_superlink(largest: int, tell: Callable[[bytes, str, str], None]) -> None:
    """``largest``: bytes that one message of a site may have; ``tell``: of a key that two machines use."""
    import uvicorn
    from starlette.middleware import Middleware

    from fedekd.flower.server.middleware import AccessControl, LongPoll, OneMachine

    own = (Middleware(AccessControl, largest), Middleware(OneMachine, tell), Middleware(LongPoll))
    # Flower serves control and runtime to anyone who can connect, bounds no request, does not tell of two machines with
    # one key and answers an empty question at once; its hook for middleware is for its own extensions only.
    replace("flwr.superlink.extensions", "get_middleware", lambda others: lambda: (*own, *others()))
    # A site that waits for a message must not hold up the SuperLink's end.
    run = partial(uvicorn.run, timeout_graceful_shutdown=1)
    replace("flwr.superlink.cli.flower_superlink", "uvicorn", lambda _: SimpleNamespace(run=run))
    # A site may push an answer in another's name, or a message to another site as if it were the server's.
    replace("flwr.superlink.servicer.fleet.fleet_handlers", "push_messages", _own_answers)


def patch_superexec() -> None:
    # A ServerApp may hang in its exit for ever, and hold the state: it is to end with its SuperExec. Its token would
    # stand in its command line, which every user of the machine can read.
    start = partial(_started_without_token, preexec_fn=partial(end_with, os.getpid()))
    own = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    replace("flwr.supercore.superexec.executor.subprocess_executor", "subprocess", lambda _: own)


def patch_supernode() -> None:
    # Three seconds between two questions are most of a short round, and half a second is long for a look at the app.
    own = SimpleNamespace(sleep=lambda seconds: time.sleep(PAUSE if seconds > PAUSE else LOOK))
    replace("flwr.supernode.start_client_internal", "time", lambda _: own)
    # A site that was killed would count as there for a minute, in which it is not let in again.
    for module in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        replace(module, "HEARTBEAT_DEFAULT_INTERVAL", lambda _: BEAT)
    # Flower does not log why an attempt to reach the server failed.
    replace("flwr.supernode.fleet_http_connection", "make_simple_http_retry_invoker", _telling)
    # One answer of 500 ends the thread that says that the site is there: it would be away for the server from then on,
    # never be asked again and not know.
    replace("flwr.supernode.fleet_http_connection", "HeartbeatSender", _lasting)


def patch_executor(executor: Any) -> None:
    # Flower's own executors start a new Python for every message; a fork of ours has everything imported.
    replace("flwr.supercore.superexec.run_superexec", "get_executor", lambda _: lambda *_, **__: executor)


def patch_clientapp(app: Any) -> None:
    """In a forked child, whose parent has Flower's connection and exit handlers."""
    from flwr.app import Error
    from flwr.supercore.exit import exit_handler

    module = "flwr.supernode.runtime.run_clientapp"
    # What code runs at a site is decided at the site: the server's bundle is neither installed nor loaded.
    replace(module, "install_from_fab", lambda _: lambda *_, **__: None)
    replace(module, "get_load_client_app_fn", lambda _: lambda **_: lambda *_: app)
    # Flower would send the exception's text to the server.
    replace(module, "Error", lambda _: lambda code, reason: Error(code, ""))
    # The parent's connection is not the child's to close.
    exit_handler.registered_exit_handlers.clear()


def _own_answers(push: Callable[..., Any]) -> Callable[..., Any]:
    """Let a site push answers only, and only its own. That ``request.node`` is who has signed the request Flower has
    checked before; and that the answer is to a message which went to its source it checks after."""
    from fastapi import HTTPException

    def checked(request: Any, state: Any) -> Any:
        given = [message.metadata for message in request.messages_list]
        mine = [one for one in given if one.src_node_id == request.node.node_id and one.reply_to_message_id]
        if len(given) != 1 or mine != given:
            raise HTTPException(403, "a site may push one answer of its own")
        return push(request=request, state=state)

    return checked


def _started_without_token(arguments: Sequence[str], **given: Any) -> Any:
    """The same process, which reads its token from a file that has no name."""
    place = arguments.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(arguments[place + 1].encode())
        file.flush()
        file.seek(0)
        from_file = ["--token-file", f"/dev/fd/{file.fileno()}"]
        changed = [*arguments[:place], *from_file, *arguments[place + 2 :]]
        return subprocess.Popen(changed, pass_fds=(file.fileno(),), **given)


def _telling(make: Callable[[], Any]) -> Callable[[], Any]:
    """Have what Flower tries again with log the reason of each failure before it is dealt with."""
    from flwr.supercore import log
    from httpx import TransportError

    def made() -> Any:
        invoker = make()
        hopeless = invoker.should_giveup

        def told(error: Exception) -> bool:
            what = "Connection attempt failed" if isinstance(error, TransportError) else "Request refused"
            log(logging.WARNING, "%s: %s", what, " ".join(str(error).split()) or type(error).__name__)
            return bool(hopeless(error))

        invoker.should_giveup = told
        return invoker

    return made


def _lasting(sender: Callable[[Callable[[], bool]], Any]) -> Callable[[Callable[[], bool]], Any]:
    """Have heartbeats tried again after any fault of the server's, and told; after too many the SuperNode ends, which
    `fedekd site run` starts anew."""
    from flwr.supercore import log
    from httpx import HTTPStatusError

    def made(beat: Callable[[], bool]) -> Any:
        failing_since: list[float] = []

        def tried() -> bool:
            hopeless, why = False, "no answer, or one of 502 to 504"
            try:
                good = beat()
            except Exception as error:
                text, _, _ = " ".join(str(error).split()).partition(" for url ")  # which httpx adds, with advice
                good, why = False, text or type(error).__name__
                status = error.response.status_code if isinstance(error, HTTPStatusError) else 0
                hopeless = status < 500 and status != 401  # after which Flower ends the SuperNode itself
            if good and failing_since:
                log(logging.INFO, "%s after %.0f s", BEATING, time.monotonic() - failing_since.pop())
            elif not good and not failing_since:
                failing_since.append(time.monotonic())
                log(logging.WARNING, "%s: %s", SKIPPED, why)
            if hopeless or (failing_since and time.monotonic() - failing_since[0] > PATIENCE):
                os.kill(os.getpid(), signal.SIGINT)  # as Flower itself does where its signature is refused
            return good

        return sender(tried)

    return made


def replace(module: str, name: str, new: Callable[[Any], Any]) -> None:
    """Put ``new(what Flower has there)`` in its place."""
    found = importlib.import_module(module)
    if not hasattr(found, name):
        version = importlib.metadata.version("flwr")
        raise FedekdError(f"flwr {version} has no {module}.{name}; install one that fedekd knows: flwr>=1.41,<1.42")
    setattr(found, name, new(getattr(found, name)))
