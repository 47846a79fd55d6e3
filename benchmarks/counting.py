"""A door that counts: every byte that one site and the server exchange passes here, as TCP carries it."""

from __future__ import annotations

import contextlib
import socket
import threading


class Counter:
    """Listens on a port of its own and passes on to another; ``up`` and ``down`` are bytes from and to the site."""

    def __init__(self, target: int) -> None:
        self.target, self.up, self.down = target, 0, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                site, _ = self.socket.accept()
                threading.Thread(target=self._serve, args=(site,), daemon=True).start()

    def _serve(self, site: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            site.close()
            return
        threading.Thread(target=self._pump, args=(server, site, "down"), daemon=True).start()
        self._pump(site, server, "up")

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()
