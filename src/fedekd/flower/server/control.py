"""What the server's administrator tells a SuperLink: which sites it knows, and which run to start."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.flower.setup.keys import read_public_keys, shared_keys

SERVER_APP = "fedekd.flower.server_app:app"
CLIENT_APP = "fedekd.flower.client_app:app"


@dataclass(frozen=True)
class RunState:
    status: str  # pending, starting, running or finished
    outcome: str  # completed, failed or stopped, once finished
    details: str


class Control:
    """A connection to the SuperLink's control API."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def nodes(self) -> list[Any]:
        """All sites that were ever registered; ``unregistered_at`` is set for those that were let go."""
        from flwr.proto import control_pb2 as api

        return list(self.client.ListNodes(api.ListNodesRequest()).nodes_info)

    def register(self, key: bytes, name: str) -> None:
        from flwr.proto import control_pb2 as api

        with _refusals():
            self.client.RegisterNode(api.RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        from flwr.proto import control_pb2 as api

        with _refusals():
            self.client.UnregisterNode(api.UnregisterNodeRequest(node_id=node))

    def admitted(self) -> dict[int, str]:
        """The nodes whose keys are let in, whether they are connected or not, with the names of the keys' files."""
        return {node.node_id: node.name for node in self.nodes() if not node.unregistered_at}

    def online(self) -> list[str]:
        return sorted(node.name or str(node.node_id) for node in self.nodes() if node.status == "online")

    def submit(self, config: Mapping[str, str], server_app: str = SERVER_APP, client_app: str = CLIENT_APP) -> int:
        """Start a run of an app that is installed on both sides; its bundle holds names and no code."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto import control_pb2 as api
        from flwr.supercore.fab import Fab

        content, _ = build_fab_from_files({"pyproject.toml": bundle(server_app, client_app).encode()})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        started = self.client.StartRun(
            api.StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)))
        )
        if not started.HasField("run_id"):
            raise FedekdError("the SuperLink did not start the run; see its log")
        return int(started.run_id)

    def state(self, run: int) -> RunState:
        from flwr.proto import control_pb2 as api

        status = self.client.ListRuns(api.ListRunsRequest(run_id=run)).run_dict[run].status
        return RunState(status.status, status.sub_status, status.details)


@contextlib.contextmanager
def connected(address: str, ca: Path) -> Iterator[Control]:
    """What the network raises in here, and each answer that is an error, comes out as ``Unreachable``."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    versions = RuntimeVersionHttpInterceptor(component_name="fedekd")
    try:
        client = ControlHttpClient.from_server_address(
            address, insecure=False, root_certificates=ca.read_bytes(), interceptors=[versions]
        )
        try:
            yield Control(client)
        finally:
            client.close()
    except httpx.HTTPError as error:
        raise Unreachable(f"the SuperLink at {address} answers: {_detail(error)}") from None


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPStatusError as error:
        raise Refused(f"the SuperLink answers: {_detail(error)}") from None


def _detail(error: Exception) -> str:
    return getattr(getattr(error, "response", None), "text", "") or str(error) or type(error).__name__


class Unreachable(FedekdError):
    """The SuperLink did not answer, or with an error."""


class Refused(FedekdError):
    """The SuperLink answered, and did not do what concerns one site only."""


def bundle(server_app: str, client_app: str) -> str:
    """The pyproject.toml that Flower wants of an app."""
    return (
        f'[project]\nname = "fedekd"\nversion = "{__version__}"\n'
        'description = "fedekd, as installed on the server and at each site"\nlicense = "Apache-2.0"\n'
        '[tool.flwr.app]\npublisher = "fedekd"\n'
        f'[tool.flwr.app.components]\nserverapp = "{server_app}"\nclientapp = "{client_app}"\n'
        '[tool.flwr.app.config]\nserver-file = ""\nfinish = "0"\n'
    )


# --- who may join: the list of keys follows the folder ``nodes``, also while a federation runs -----------------------


@dataclass
class Admission:
    """What came of having the SuperLink know the keys in a folder."""

    problems: dict[Path, str]
    """By file (or the folder): why what is in it changes nothing."""
    came: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    again: bool = False
    """Whether the SuperLink refused something, for a reason that may pass."""

    def do(self, call: Callable[..., None], *given: Any, file: Path, done: list[str]) -> None:
        try:
            call(*given)
            done.append(file.stem)
        except Refused as refused:
            self.problems[file], self.again = f"{file} has no effect yet: {refused}", True


def admit(superlink: Control, folder: Path) -> Admission:
    """Make the SuperLink's list of sites that of the folder's NAME.pub files, as far as that goes.

    Flower never takes a key again that it once let go. So nobody is let go because of a file that cannot be read,
    which may be half copied; and a key that comes back is named, not registered. What is wrong with one key concerns
    no other.
    """
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys, unread = read_public_keys(folder)
    shared = shared_keys(keys)
    files = {public_key_to_bytes(key): path for path, key in keys.items()}
    nodes = superlink.nodes()
    let_in = {node.public_key: node for node in nodes if not node.unregistered_at}
    void = {node.public_key for node in nodes if node.unregistered_at}
    found = Admission({path: f"{why}; until that is mended its site stays as it was" for path, why in unread.items()})
    for key, node in let_in.items():
        file = folder / f"{node.name}.pub"
        if key not in files and file not in unread and folder not in unread:
            found.do(superlink.unregister, node.node_id, file=file, done=found.gone)
    found.problems |= {path: f"{why}; until then nothing changes for it" for path, why in shared.items()}
    for key, file in files.items():
        if file in shared:
            continue
        if key in let_in and let_in[key].name != file.stem:
            found.problems[file] = (
                f"{file} holds the key of site {let_in[key].name}, whose name stays with it: name the file "
                f"{let_in[key].name}.pub again, or have the site make a new key with `fedekd site key`"
            )
        if key in void:
            found.problems[file] = (
                f"site {file.stem} needs a new key: the one in {file} was taken out before, so it is no longer valid; "
                "`fedekd site key` at the site makes one"
            )
        elif key not in let_in:
            found.do(superlink.register, key, file.stem, file=file, done=found.came)
    return found
