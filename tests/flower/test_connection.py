"""A site asks a real SuperLink whether it knows the site's key, and changes nothing there by it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from bare_superlink import bare_superlink

from fedekd.errors import FedekdError
from fedekd.flower.server.control import connected
from fedekd.flower.settings import SiteSettings
from fedekd.flower.setup.connection import Connection, NotChecked
from fedekd.flower.setup.keys import make_node_key, read_public_key
from fedekd.flower.supervise.processes import stop


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteSettings]:
    """A site with a key, and a SuperLink that asks for keys."""
    make_node_key(tmp_path / "north")
    link, ca, port = bare_superlink(tmp_path)
    made = SiteSettings(
        name="north", server=f"127.0.0.1:{port}", ca=ca, key=tmp_path / "north", state=tmp_path, data="digits"
    )
    try:
        end = time.monotonic() + 60
        while True:
            try:
                Connection(made).check()
                break
            except FedekdError:
                assert time.monotonic() < end, link.lines()
                assert link.code is None, link.lines()
                time.sleep(0.2)
        yield made
    finally:
        stop([link])


def asked(site: SiteSettings) -> str:
    connection = Connection(site)
    connection.check()
    return connection.known()


def test_whether_the_server_knows_the_key(site: SiteSettings) -> None:
    from flwr.proto import control_pb2 as api
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    with pytest.raises(FedekdError, match=r"does not know this site's key; send .*north\.pub") as refused:
        asked(site)
    assert not isinstance(refused.value, NotChecked)
    public = public_key_to_bytes(read_public_key(site.key.with_name("north.pub")))
    with connected(site.server, site.ca) as control:
        control.client.RegisterNode(api.RegisterNodeRequest(public_key=public, name="north"))
        before = control.client.ListNodes(api.ListNodesRequest())
        assert asked(site) == "the server knows this site's key"
        after = control.client.ListNodes(api.ListNodesRequest())
        assert before.nodes_info == after.nodes_info, "nothing has changed there"
        assert after.nodes_info[0].status == "registered"
        control.client.UnregisterNode(api.UnregisterNodeRequest(node_id=after.nodes_info[0].node_id))
        with pytest.raises(FedekdError, match="does not know this site's key"):
            asked(site)


def test_without_a_connection_nothing_is_said_of_the_key(tmp_path: Path) -> None:
    site = SiteSettings(name="north", server="localhost:1", ca=tmp_path, key=tmp_path, state=tmp_path, data="digits")
    with pytest.raises(NotChecked, match="has to answer"):
        Connection(site).known()
