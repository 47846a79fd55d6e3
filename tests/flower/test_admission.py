"""Which keys a real SuperLink takes while it runs, and what the server's administrator is told of the others."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedekd.errors import FedekdError
from fedekd.flower.server import control
from fedekd.flower.settings import SiteSettings, read_server, read_site
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.setup.keys import make_node_key, read_node_key
from fedekd.flower.supervise import run_site
from fedekd.flower.supervise.processes import free_port
from fedekd.flower.supervise.run_server import ServerSupervisor, _check
from fedekd.flower.supervise.run_site import SiteSupervisor

NEW = "may no longer join; to come back it needs a new key (`fedekd site key` there)"


class Desk:
    """A SuperLink, its folder of keys, and what is said about them."""

    def __init__(self, supervisor: ServerSupervisor, superlink: control.Control, told: list[str]) -> None:
        self.supervisor, self.superlink, self.told = supervisor, superlink, told
        self.nodes = supervisor.server.nodes

    def look(self) -> list[str]:
        """What is said at the next look at the folder."""
        self.told.clear()
        self.supervisor.admit_sites(self.superlink)
        return list(self.told)

    def names(self) -> list[str]:
        return sorted(node.name for node in self.superlink.nodes() if not node.unregistered_at)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admission") / "server"
    init_server(folder, f"localhost:{free_port()}", settings={"listen": "127.0.0.1"})
    return folder / "server.toml"


@pytest.fixture(scope="module")
def running(file: Path) -> Iterator[None]:
    """One SuperLink for all tests: most of its time goes into its start."""
    with ServerSupervisor(read_server(file), file, ("", ""), print).superlink():
        yield


@pytest.fixture
def desk(running: None, file: Path) -> Iterator[Desk]:
    """With no key in the folder, and none that the SuperLink lets in."""
    told: list[str] = []
    supervisor = ServerSupervisor(read_server(file), file, ("", ""), told.append)
    with control.connected(supervisor.address, supervisor.server.ca) as superlink:
        one = Desk(supervisor, superlink, told)
        assert one.names() == []
        yield one
        shutil.rmtree(one.nodes, ignore_errors=True)
        one.nodes.mkdir()
        for node in superlink.admitted():
            superlink.unregister(node)


def test_a_key_that_comes_back_or_cannot_be_read_concerns_its_site_alone(desk: Desk, tmp_path: Path) -> None:
    north, south, nodes = make_node_key(tmp_path / "north"), make_node_key(tmp_path / "south"), desk.nodes
    assert desk.look() == [f"no site may join yet: put the sites' public keys, NAME.pub, into {nodes}"]
    shutil.copy(north, nodes)
    shutil.copy(south, nodes)
    assert desk.look() == ["site north may join", "site south may join"]
    assert desk.look() == []

    (nodes / "north.pub").unlink()
    assert desk.look() == [f"site north {NEW}"]
    shutil.copy(north, nodes)
    shutil.copy(make_node_key(tmp_path / "west"), nodes)
    assert desk.look() == [
        "site west may join",
        f"site north needs a new key: the one in {nodes}/north.pub was taken out before, so it is no longer valid; "
        "`fedekd site key` at the site makes one",
    ]
    assert desk.names() == ["south", "west"]

    (nodes / "south.pub").write_bytes(south.read_bytes()[:70])
    (said,) = desk.look()
    assert "south.pub is not an OpenSSH public key" in said
    assert "until that is mended its site stays as it was" in said
    assert desk.names() == ["south", "west"], "a file that is half copied must not cost a site its key"
    (nodes / "north.pub").touch()
    assert desk.look() == [], "each is said once"
    shutil.copy(south, nodes)
    assert desk.look() == []
    (nodes / "south.pub").write_text("rubbish")
    assert len(desk.look()) == 1, "another time is said again"
    shutil.copy(south, nodes)

    shutil.copy(make_node_key(tmp_path / "other"), nodes / "north.pub")
    assert desk.look() == ["site north may join"]
    shutil.copy(make_node_key(tmp_path / "third"), nodes / "north.pub")
    assert desk.look() == ["site north may join with its new key; the old one is no longer valid"]

    nodes.rename(tmp_path / "away")
    (said,) = desk.look()
    assert said.startswith(f"cannot read the folder {nodes}")
    assert desk.names() == ["north", "south", "west"]


def test_two_files_with_one_key_are_told(desk: Desk, file: Path, tmp_path: Path) -> None:
    north, nodes = make_node_key(tmp_path / "north"), desk.nodes
    for name in ("first", "second"):
        shutil.copy(north, nodes / f"{name}.pub")
    said = desk.look()
    assert len(said) == 2
    assert all("first.pub and second.pub hold one and the same key, and each site needs its own" in one for one in said)
    assert desk.names() == []
    with pytest.raises(FedekdError, match=r"first\.pub and second\.pub hold one and the same key"):
        _check(desk.supervisor.server, file)
    (nodes / "first.pub").unlink()
    assert desk.look() == ["site second may join"]
    (nodes / "second.pub").rename(nodes / "third.pub")
    (said,) = desk.look()
    assert "third.pub holds the key of site second, whose name stays with it: name the file second.pub again" in said
    shutil.copy(nodes / "third.pub", nodes / "second.pub")
    assert "hold one and the same key" in desk.look()[0]
    assert desk.names() == ["second"], "nothing changes for it"


def test_one_key_on_two_machines_is_told_on_both_sides(
    desk: Desk, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(file.parent / "certificates" / "ca.crt")
    init_site(tmp_path / "north", "north", desk.supervisor.server.address, "digits", ca=ca)
    site = read_site(tmp_path / "north" / "site.toml")
    shutil.copy(tmp_path / "north" / "keys" / "north.pub", desk.nodes)
    desk.look()
    second = SiteSupervisor(site, tmp_path / "north" / "site.toml", "", print)
    with fleet(site) as (client, key):
        asking = ActivateNodeRequest(public_key=key, heartbeat_interval=10)
        node = Node(node_id=client.ActivateNode(asking).node_id)
        beating = SendNodeHeartbeatRequest(node=node, heartbeat_interval=10)
        assert client.SendNodeHeartbeat(beating).success
        desk.supervisor.warned.look()
        desk.told.clear()
        with pytest.raises(httpx.HTTPStatusError, match="412"):
            client.ActivateNode(asking)
        desk.supervisor.warned.look()
        assert desk.told == [], "a site that was restarted does so too"
        for _ in range(2):
            assert client.SendNodeHeartbeat(beating).success
        desk.supervisor.warned.look()
        (said,) = desk.told
        assert said.startswith("two machines use north.pub, 127.0.0.1 and 127.0.0.1: the second is not let in")
    assert "still counts this site's last connection" in second._why_not_let_in()
    monkeypatch.setattr(run_site, "GONE", 0)
    assert "another machine is connected with this site's key" in second._why_not_let_in()
    (desk.nodes / "north.pub").unlink()
    desk.look()
    assert "does not know this site's key; send" in second._why_not_let_in()


def test_a_real_superlink_takes_no_answer_in_anothers_name(desk: Desk, file: Path, tmp_path: Path) -> None:
    ca = str(file.parent / "certificates" / "ca.crt")
    for name in ("north", "south"):
        init_site(tmp_path / name, name, desk.supervisor.server.address, "digits", ca=ca)
        shutil.copy(tmp_path / name / "keys" / f"{name}.pub", desk.nodes)
    desk.look()
    ids = {node.name: node.node_id for node in desk.superlink.nodes()}

    def status(source: str, reply_to: str) -> int:
        """Of an answer that north pushes."""
        about = Metadata(src_node_id=ids[source], dst_node_id=1, reply_to_message_id=reply_to, message_type="train")
        answer = PushMessagesRequest(node=Node(node_id=ids["north"]), messages_list=[Message(metadata=about)])
        with fleet(read_site(tmp_path / "north" / "site.toml")) as (client, _):
            try:
                client.PushMessages(answer)
            except httpx.HTTPStatusError as error:
                return error.response.status_code
        return 200

    assert status("south", "a") == 403
    assert status("north", "") == 403
    assert status("north", "a") not in (403, 200), "there is no such run: it has come as far as Flower"


@contextlib.contextmanager
def fleet(site: SiteSettings) -> Iterator[tuple[FleetHttpClient, bytes]]:
    """What a SuperNode has: a connection that signs with the site's key."""
    key = read_node_key(site.key)
    signing = [NodeAuthHttpInterceptor(key, key.public_key())]
    address, ca = site.server.replace("localhost", "127.0.0.1"), site.ca.read_bytes()
    with FleetHttpClient.from_server_address(address, False, ca, interceptors=signing) as client:
        yield client, public_key_to_bytes(key.public_key())


def test_what_the_superlink_refuses_for_one_key_is_tried_again(desk: Desk, tmp_path: Path) -> None:
    for name in ("north", "south"):
        shutil.copy(make_node_key(tmp_path / name), desk.nodes)
    register = desk.superlink.client.RegisterNode

    def failing(request):
        if request.name == "north":
            answer = httpx.Response(500, text="database is locked", request=httpx.Request("POST", "https://localhost"))
            answer.raise_for_status()
        return register(request)

    desk.superlink.client.RegisterNode = failing
    why = f"{desk.nodes}/north.pub has no effect yet: the SuperLink answers: database is locked"
    assert desk.look() == ["site south may join", why]
    assert desk.look() == []
    desk.superlink.client.RegisterNode = register
    assert desk.look() == ["site north may join"]
    assert desk.names() == ["north", "south"]
