"""``fedekd server init`` and ``fedekd site init``: folders, keys, certificates, settings and units, ready to start."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.files import DATA_FILES, file_kind, write_new
from fedekd.flower import need_flower
from fedekd.flower.settings import (
    ServerSettings,
    SiteSettings,
    checked_address,
    checked_name,
    read_server,
    read_site,
)
from fedekd.flower.setup.certificates import (
    check_certificate,
    make_authority,
    make_server_certificate,
    read_certificate,
)
from fedekd.flower.setup.check import check_method
from fedekd.flower.setup.keys import make_node_key
from fedekd.flower.toml_files import toml_text

AMBIENT = "AmbientCapabilities=CAP_NET_BIND_SERVICE"  # what a service needs for a port below 1024
LOCAL = ["localhost", "127.0.0.1"]  # how the server's own processes reach it
FROM_FIVE = (
    'with five sites or more, so that one bad site can do little harm, set combine = "median" and min_sites = 3 or more'
)


def init_server(
    folder: str | Path,
    address: str,
    *,
    certificates: tuple[str, str, str] | None = None,
    user: str = "fedekd",
    settings: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make a server's folder; returns what to do next, line by line.

    ``certificates`` are the paths of one's own (CA certificate, certificate, private key); without them an authority
    is made that is good for trials. ``settings`` are further keys of server.toml.
    """
    need_flower()
    host, port = checked_address(address, "--address")
    with _new_folder(folder, "server.toml") as made:
        return _fill_server(made, host, port, address, certificates, user, settings or {})


def _fill_server(
    folder: Path,
    host: str,
    port: int,
    address: str,
    certificates: tuple[str, str, str] | None,
    user: str,
    settings: Mapping[str, Any],
) -> list[str]:
    if certificates:
        paths = [Path(path).expanduser().absolute() for path in certificates]
        ca, certificate, key = paths
    else:
        authority = make_authority(folder / "certificates")
        certificate, key = make_server_certificate(folder / "certificates", authority, [host, *LOCAL])
        ca = authority[0]
    (folder / "nodes").mkdir()
    (folder / "state").mkdir(mode=0o700)
    values = {
        "address": address, "ca": _inside(ca, folder), "certificate": _inside(certificate, folder),
        "key": _inside(key, folder), "nodes": "nodes", "state": "state", "schema": "schema.json", **settings,
    }  # fmt: skip
    file = _write_settings(
        ServerSettings, "A federation's server. `fedekd server run` reads this file.", folder, values
    )
    server = read_server(file)
    check_certificate(server)
    check_method(server, "--method" if "method" in settings else file)
    about = f"fedekd server ({address})"
    unit = _unit(folder, "fedekd-server.service", about, "server run", file, user, low_port=port < 1024)
    return [
        f"give every site: {ca}",
        f"put each site's public key into: {folder / 'nodes'}/",
        f"put the sites' schema (`fedekd site schema` at one of them makes it) at: {folder / 'schema.json'}",
        f"set method, rounds and the rest in: {file}",
        *([] if server.combine != "mean" else [f"{FROM_FIVE} in: {file}"]),
        f"let user {user} read {key}, if the server is to run as a service"
        if certificates
        else f"keep {folder / 'certificates' / 'ca.key'} offline: whoever has it can pose as the server",
        f"start with: fedekd server run {shlex.quote(str(file))}",
        *_as_a_service(unit, user),
    ]


def init_site(
    folder: str | Path,
    name: str,
    server: str,
    data: str,
    *,
    ca: str | None = None,
    user: str = "fedekd",
    settings: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make a site's folder; returns what to do next, line by line. ``settings`` are further keys of site.toml."""
    need_flower()
    checked_name(name, "--name")
    checked_address(server, "--server")
    with _new_folder(folder, "site.toml") as made:
        return _fill_site(made, name, server, data, ca, user, settings or {})


def _fill_site(
    folder: Path, name: str, server: str, data: str, ca: str | None, user: str, settings: Mapping[str, Any]
) -> list[str]:
    public = make_node_key(folder / "keys" / name)
    (folder / "state").mkdir(mode=0o700)
    if ca:
        given = Path(ca).expanduser()
        read_certificate(given)
        write_new(folder / "ca.crt", given.read_bytes())
    values = {
        "name": name, "server": server, "ca": "ca.crt", "key": f"keys/{name}", "state": "state",
        "data": _absolute(data), **settings,
    }  # fmt: skip
    file = _write_settings(SiteSettings, "A site of a federation. `fedekd site run` reads this file.", folder, values)
    rows = Path(read_site(file).data)
    unit = _unit(folder, "fedekd-site.service", f"fedekd site {name}", "site run", file, user)
    return [
        f"send to the server's administrator: {public}",
        *([] if ca else [f"get the server's ca.crt from its administrator and put it at: {folder / 'ca.crt'}"]),
        *(
            [f"put the site's rows at: {rows} (there is nothing yet)"]
            if rows.is_absolute() and not rows.exists()
            else []
        ),
        f"read through, and change what you need: {file}",
        f"check with: fedekd site check {shlex.quote(str(file))}",
        f"accept the schema that you have read: fedekd site accept {shlex.quote(str(file))} --schema schema.json",
        f"start with: fedekd site run {shlex.quote(str(file))}",
        f"it prints what it does and what went wrong, and keeps all but the connection in: {folder / 'state' / 'log'}",
        f"see how it is, with its connection: fedekd site status {shlex.quote(str(file))}",
        *_as_a_service(unit, user, f"site check {shlex.quote(str(file))}"),
    ]


@contextlib.contextmanager
def _new_folder(given: str | Path, file: str) -> Iterator[Path]:
    """An empty folder to fill, which is empty again if that fails."""
    folder = Path(given).expanduser().absolute()
    if (folder / file).exists():
        raise FedekdError(f"{folder / file} exists; nothing is changed: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedekdError(f"cannot make {folder}: {error.strerror}") from None
    if any(folder.iterdir()):
        raise FedekdError(f"{folder} is not empty; nothing is changed: name another folder")
    try:
        yield folder
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _write_settings(cls: type, title: str, folder: Path, values: Mapping[str, Any]) -> Path:
    name = "server.toml" if cls is ServerSettings else "site.toml"
    return write_new(folder / name, toml_text(cls, title, values).encode())


def _inside(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _absolute(data: str) -> str:
    """A file as seen from where the command was given; a dataset's name or a loader as it is."""
    path = Path(data).expanduser()
    return str(path.absolute()) if "/" in data or file_kind(path) in DATA_FILES or path.exists() else data


def _unit(
    folder: Path, name: str, description: str, command: str, file: Path, user: str, *, low_port: bool = False
) -> Path:
    """A systemd unit that can write to the state folder and to nothing else."""
    rights = f"CapabilityBoundingSet=CAP_NET_BIND_SERVICE\n{AMBIENT}" if low_port else "CapabilityBoundingSet="
    text = f"""[Unit]
Description={description}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=10

[Service]
User={user}
ExecStart={_word(sys.executable)} -m fedekd {command} {_word(file).replace("$", "$$")}
Restart=on-failure
RestartSec=60
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={_word(folder / "state")}
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
{rights}
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX

[Install]
WantedBy=multi-user.target
"""
    return write_new(folder / name, text.encode())


def _word(text: str | Path) -> str:
    """A path in a unit, whatever is in its name. Only a command's arguments (not the command) need $ doubled too."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _as_a_service(unit: Path, user: str, check: str = "") -> list[str]:
    """Keys and state are for their owner alone, so the service's user must exist and own them before it starts."""
    name = shlex.quote(user)
    return [
        "or as a service, by root:",
        f"  id {name} || useradd --system --shell /usr/sbin/nologin {name}",
        f"  chown -R {name}: {shlex.quote(str(unit.parent))}",
        *([f"  runuser -u {name} -- {shlex.quote(sys.executable)} -m fedekd {check}"] if check else []),
        f"  cp {shlex.quote(str(unit))} /etc/systemd/system/ && systemctl enable --now {unit.name}",
    ]
