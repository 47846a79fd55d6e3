"""What fedekd replaces in Flower is still there, and Flower still uses it as the replacement takes for granted."""

from __future__ import annotations

import ast
import importlib
import inspect
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.flower import patches
from fedekd.flower.server import middleware
from fedekd.flower.server.middleware import AccessControl, LongPoll, OneMachine
from fedekd.flower.supervise.executor import ForkingExecutor

LINK = "flwr.superlink.cli.flower_superlink"
HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
SUBPROCESSES = "flwr.supercore.superexec.executor.subprocess_executor"
NODE = "flwr.supernode.start_client_internal"
FLEET = "flwr.supernode.fleet_http_connection"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
CLIENTAPP = "flwr.supernode.runtime.run_clientapp"


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """By module and name: what stands there now; it is put back after the test."""
    found: dict[tuple[str, str], Any] = {}

    def replace(module: str, name: str, new: Callable[[Any], Any]) -> None:
        before = getattr(importlib.import_module(module), name)
        found[module, name] = new(before)
        monkeypatch.setattr(importlib.import_module(module), name, found[module, name])

    monkeypatch.setattr(patches, "replace", replace)
    return found


def uses(module: str, name: str) -> list[ast.Attribute | ast.Call]:
    """Where a module reads an attribute of one of its globals, or calls it."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name)
    ]


def attributes(module: str, name: str) -> set[str]:
    return {node.attr for node in uses(module, name) if isinstance(node, ast.Attribute)}


def calls(module: str, name: str) -> list[ast.Call]:
    return [node for node in uses(module, name) if isinstance(node, ast.Call)]


def test_the_superlink_has_our_middleware_outermost(replaced):
    patches.patch_superlink(1000, print)
    assert set(replaced) == {
        ("flwr.superlink.extensions", "get_middleware"), (LINK, "uvicorn"), (HANDLERS, "push_messages")
    }  # fmt: skip
    main = importlib.import_module("flwr.superlink.main")
    order = [one.cls for one in main.create_app().user_middleware]
    assert order[:3] == [AccessControl, OneMachine, LongPoll]
    assert len(order) > 3


def test_flower_has_the_paths_and_the_header_that_we_watch():
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    routes = {route.path for route in importlib.import_module("flwr.superlink.routers.fleet.router").router.routes}
    assert {middleware.ACTIVATION, middleware.HEARTBEAT, middleware.QUESTION} <= routes
    assert FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == middleware.KEY


def test_the_superlink_is_run_by_uvicorn_which_it_does_not_tell_how_to_end(replaced):
    assert attributes(LINK, "uvicorn") == {"run"}
    tree = ast.parse(inspect.getsource(importlib.import_module(LINK)))
    (run,) = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "uvicorn.run")
    assert "timeout_graceful_shutdown" not in {keyword.arg for keyword in run.keywords}
    patches.patch_superlink(1000, print)
    assert replaced[LINK, "uvicorn"].run.keywords == {"timeout_graceful_shutdown": 1}


def test_an_answer_is_pushed_in_ones_own_name(replaced):
    from fastapi import HTTPException
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    assert "fleet_handlers.push_messages(request=request, state=state)" in inspect.getsource(
        importlib.import_module("flwr.superlink.routers.fleet.router")
    )
    handlers = importlib.import_module(HANDLERS)
    reached: list[Any] = []

    def pushed(*about: dict[str, Any]) -> list[Any]:
        messages = [Message(metadata=Metadata(**one)) for one in about]
        checked = patches._own_answers(lambda request, state: reached.append(request))
        checked(request=PushMessagesRequest(node=Node(node_id=7), messages_list=messages), state=None)
        return reached

    assert {"request", "state"} == set(inspect.signature(handlers.push_messages).parameters)
    own = {"src_node_id": 7, "dst_node_id": 1, "reply_to_message_id": "a"}
    assert len(pushed(own)) == 1
    for given in (
        [{**own, "src_node_id": 8}],
        [{**own, "src_node_id": 1}],
        [{**own, "reply_to_message_id": ""}],
        [own, own],
        [],
    ):
        with pytest.raises(HTTPException, match="403"):
            pushed(*given)
    assert len(reached) == 1


def test_the_superexec_starts_serverapps_as_processes(replaced):
    patches.patch_superexec()
    assert attributes(SUBPROCESSES, "subprocess") == {"Popen", "DEVNULL"} == set(vars(*replaced.values()))


def test_a_serverapp_reads_its_token_from_a_file_without_a_name(tmp_path):
    from flwr.common.args import try_obtain_flwr_app_token
    from flwr.superlink.cli.flwr_serverapp import _parse_args_run_flwr_serverapp

    assert '"--token",\n            spec.token,' in inspect.getsource(importlib.import_module(SUBPROCESSES))
    code = (
        "import sys; from fedekd.flower.patches import *; from flwr.common.args import *; import argparse; "
        "parser = argparse.ArgumentParser(); add_args_flwr_app_common(parser); "
        "print(try_obtain_flwr_app_token(parser.parse_args()), sys.argv[1:])"
    )
    with open(tmp_path / "out", "w") as out:
        started = patches._started_without_token(
            [sys.executable, "-c", code, "--token", "c0ffee", "--insecure"], stdout=out
        )
        assert started.wait(60) == 0
    token, told = (tmp_path / "out").read_text().split(" ", 1)
    assert token == "c0ffee"
    assert "c0ffee" not in told
    assert "--insecure" in told
    assert try_obtain_flwr_app_token(_parse_args_run_flwr_serverapp().parse_args(["--token", "a"])) == "a"


def test_the_supernode_sleeps_three_seconds_or_half_of_one(replaced, monkeypatch):
    tree = ast.parse(inspect.getsource(importlib.import_module(NODE)))
    slept = [
        ast.literal_eval(n.args[0])
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "time.sleep"
    ]
    assert sorted(slept) == [0.5, 0.5, 3]
    assert attributes(NODE, "time") == {"sleep"}
    patches.patch_supernode()
    ours: list[float] = []
    monkeypatch.setattr("time.sleep", ours.append)
    for seconds in slept:
        replaced[NODE, "time"].sleep(seconds)
    assert sorted(ours) == [patches.LOOK, patches.LOOK, patches.PAUSE]


def test_the_supernodes_heartbeat_is_the_least_that_flower_allows(replaced):
    from flwr.common import constant

    assert constant.HEARTBEAT_MIN_INTERVAL == patches.BEAT < constant.HEARTBEAT_DEFAULT_INTERVAL
    assert constant.HEARTBEAT_CALL_TIMEOUT < patches.BEAT
    patches.patch_supernode()
    for module in ("flwr.supercore.heartbeat", FLEET):
        assert importlib.import_module(module).HEARTBEAT_DEFAULT_INTERVAL == patches.BEAT
        names = [n for n in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))) if
                 isinstance(n, ast.Name) and n.id == "HEARTBEAT_DEFAULT_INTERVAL"]  # fmt: skip
        assert names, "read when it is needed, from the module's own globals"


def test_the_supernode_asks_what_it_tries_again_with_whether_to_give_up(replaced):
    import httpx

    assert len(calls(FLEET, "make_simple_http_retry_invoker")) == 1
    bare = importlib.import_module(FLEET).make_simple_http_retry_invoker()
    patches.patch_supernode()
    ours = replaced[FLEET, "make_simple_http_retry_invoker"]()
    for error in (httpx.ConnectError("no"), ValueError("x")):
        assert ours.should_giveup(error) == bool(bare.should_giveup(error))
    from flwr.supercore.retry import RetryInvoker

    assert "self.should_giveup(" in inspect.getsource(RetryInvoker)


@pytest.mark.parametrize("status", [500, 501, 502])
def test_a_heartbeat_outlives_a_fault_of_the_server(replaced, status, caplog):
    import httpx

    assert len(calls(FLEET, "HeartbeatSender")) == 1
    patches.patch_supernode()
    beats: list[int] = []
    often = threading.Event()

    def beat() -> bool:
        beats.append(len(beats))
        if len(beats) == 1:
            request = httpx.Request("POST", "https://localhost")
            httpx.Response(status, request=request).raise_for_status()
        often.set()
        return True

    sender = importlib.import_module(FLEET).HeartbeatSender(beat)
    sender.start()
    assert often.wait(10), "and is not tried again minutes later"
    assert sender.is_running
    sender.stop()


@pytest.mark.parametrize("fault", ["403", "unknown", "for long"])
def test_a_supernode_without_heartbeats_ends(replaced, fault, monkeypatch):
    import httpx

    patches.patch_supernode()
    killed: list[int] = []
    monkeypatch.setattr(patches.os, "kill", lambda _, number: killed.append(number))
    monkeypatch.setattr(patches, "PATIENCE", -1.0 if fault == "for long" else 60.0)

    def beat() -> bool:
        if fault == "403":
            httpx.Response(403, request=httpx.Request("POST", "https://localhost")).raise_for_status()
        if fault == "unknown":
            raise RuntimeError("The SuperLink does not recognize this SuperNode.")
        return False

    assert importlib.import_module(FLEET).HeartbeatSender(beat).heartbeat_fn() is False
    assert killed == [signal.SIGINT]


def test_an_executor_is_what_flower_calls_one(replaced):
    from flwr.supercore.superexec.executor.types import Executor, LaunchResult

    (call,) = calls(SUPEREXEC, "get_executor")
    assert call
    patches.patch_executor(own := ForkingExecutor(None))
    assert importlib.import_module(SUPEREXEC).get_executor("any", insecure=True) is own
    for name in (name for name in vars(Executor) if not name.startswith("_")):
        theirs = inspect.signature(getattr(Executor, name)).parameters
        given = [p for p in theirs.values() if p.name != "self"]
        inspect.signature(getattr(own, name)).bind(
            *(0 for p in given if p.kind is p.POSITIONAL_OR_KEYWORD),
            **{p.name: 0 for p in given if p.kind is p.KEYWORD_ONLY},
        )
    assert LaunchResult.accepted()
    run = inspect.signature(importlib.import_module(SUPEREXEC).run_superexec)
    run.bind("address", insecure=True, superexec_auth_secret=b"")


def test_a_clientapp_task_runs_our_app_and_sends_no_text(replaced):
    from flwr.supercore.exit import exit_handler

    kept = list(exit_handler.registered_exit_handlers)
    app = object()
    try:
        exit_handler.add_exit_handler(lambda: None)
        patches.patch_clientapp(app)
        assert exit_handler.registered_exit_handlers == []
    finally:
        exit_handler.registered_exit_handlers[:] = kept
    module = importlib.import_module(CLIENTAPP)
    (install,), (load,), (error,) = (
        calls(CLIENTAPP, name) for name in ("install_from_fab", "get_load_client_app_fn", "Error")
    )
    assert ast.unparse(install) == "install_from_fab(fab.content, skip_prompt=True)"
    assert module.install_from_fab(b"", skip_prompt=True) is None
    assert load.args == []
    assert module.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("", "", "") is app
    assert {keyword.arg for keyword in error.keywords} == {"code", "reason"}
    assert module.Error(code=3, reason="a secret").reason == ""
    given = {"runtime_api_address", "token", "insecure", "parent_pid", "runtime_dependency_install"}
    assert given <= set(inspect.signature(module.run_clientapp).parameters)


def test_a_name_that_flower_no_longer_has_is_an_error():
    with pytest.raises(FedekdError, match=r"flwr 1\.\d+\.\d+ has no flwr\.superlink\.extensions\.get_gate; install"):
        patches.replace("flwr.superlink.extensions", "get_gate", lambda before: before)
