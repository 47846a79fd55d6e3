"""Which keys a real SuperLink takes while it runs, and what the server's administrator is told of the others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

import httpx

from fedekd.flower.server import control
from fedekd.flower.settings import read_server
from fedekd.flower.setup.init import init_server
from fedekd.flower.setup.keys import make_node_key
from fedekd.flower.supervise.processes import free_port
from fedekd.flower.supervise.run_server import ServerSupervisor

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    init_server(tmp_path / "server", f"localhost:{free_port()}", settings={"listen": "127.0.0.1"})
    return tmp_path / "server" / "server.toml"


@pytest.fixture
def desk(file: Path) -> Iterator[Desk]:
    told: list[str] = []
    supervisor = ServerSupervisor(read_server(file), file, ("", ""), told.append)
    with supervisor.superlink(), control.connected(supervisor.address, supervisor.server.ca) as superlink:
        yield Desk(supervisor, superlink, told)


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
        f"site north needs a new key: the one in {nodes}/north.pub was taken out before, which makes it void; "
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
    assert desk.look() == ["site north may join with its new key; the old one is void"]

    nodes.rename(tmp_path / "away")
    (said,) = desk.look()
    assert said.startswith(f"cannot read the folder {nodes}")
    assert desk.names() == ["north", "south", "west"]


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
