"""Our SuperLink alone, with a certificate of its own and no supervisor."""

from __future__ import annotations

from pathlib import Path

from fedekd.flower.setup.certificates import make_authority, make_server_certificate
from fedekd.flower.supervise.processes import Child, command, environment, free_port


def bare_superlink(folder: Path, host: str = "127.0.0.1") -> tuple[Child, Path, int]:
    """The process, its authority's certificate and its port; it may not answer yet."""
    authority = make_authority(folder)
    certificate, key = make_server_certificate(folder, authority, ["127.0.0.1"])
    port = free_port()
    link = Child(
        "superlink",
        command(
            "fedekd.flower.supervise.launch",
            "superlink",
            *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(authority[0])),
            *("--enable-supernode-auth", "--isolation", "process", "--host", host, "--port", str(port)),
        ),
        folder / "log",
        environment(folder / "home"),
    )
    return link, authority[0], port
