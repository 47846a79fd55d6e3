"""A stranger in the middle who has the server's key: passes on what a site sends, and keeps every byte in the clear."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path


class Recorder:
    """Listens as the server would; ``up`` and ``down`` are the bytes inside TLS, connection after connection."""

    def __init__(self, server: Path, port: int) -> None:
        certificates = server / "certificates"
        self.inside = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        outside.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.outside, self.target = outside, port
        self.streams: list[tuple[bytearray, bytearray]] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def up(self) -> bytes:
        return b"\n".join(bytes(up) for up, _ in self.streams)

    @property
    def down(self) -> bytes:
        return b"\n".join(bytes(down) for _, down in self.streams)

    def close(self) -> None:
        self.socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self.socket.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            site = self.outside.wrap_socket(plain, server_side=True)
            server = self.inside.wrap_socket(
                socket.create_connection(("127.0.0.1", self.target)), server_hostname="localhost"
            )
            up, down = bytearray(), bytearray()
            self.streams.append((up, down))
            back = threading.Thread(target=_pump, args=(server, site, down), daemon=True)
            back.start()
            _pump(site, server, up)


def _pump(source: ssl.SSLSocket, target: ssl.SSLSocket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
