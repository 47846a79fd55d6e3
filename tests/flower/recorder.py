"""A stranger in the middle who has the server's key: passes on what a site sends, and keeps every byte in the clear."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from pathlib import Path


class Recorder:
    """Listens as the server would; ``up`` and ``down`` are the bytes inside TLS, connection after connection.

    One thread with a loop has all connections: a TLS connection does not bear two threads at once.
    """

    def __init__(self, server: Path, port: int) -> None:
        certificates = server / "certificates"
        self.inside = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.outside.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.target, self.port = port, 0
        self.streams: list[tuple[bytearray, bytearray]] = []
        self.loop = asyncio.new_event_loop()
        listening = threading.Event()
        threading.Thread(target=self._run, args=(listening,), daemon=True).start()
        assert listening.wait(10)

    @property
    def up(self) -> bytes:
        return b"\n".join(bytes(up) for up, _ in self.streams)

    @property
    def down(self) -> bytes:
        return b"\n".join(bytes(down) for _, down in self.streams)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self, listening: threading.Event) -> None:
        self.loop.set_exception_handler(lambda loop, context: None)  # sites and servers are killed on purpose
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.outside)
        gate = self.loop.run_until_complete(start)
        self.port = int(gate.sockets[0].getsockname()[1])
        listening.set()
        self.loop.run_forever()

    async def _serve(self, from_site: asyncio.StreamReader, to_site: asyncio.StreamWriter) -> None:
        try:
            where = {"ssl": self.inside, "server_hostname": "localhost"}
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target, **where)
        except OSError:
            to_site.close()
            return
        up, down = bytearray(), bytearray()
        self.streams.append((up, down))
        await asyncio.gather(self._up(from_site, to_server, to_site, up), _pump(from_server, to_site, down))

    async def _up(
        self, from_site: asyncio.StreamReader, to_server: asyncio.StreamWriter, _: asyncio.StreamWriter, up: bytearray
    ) -> None:
        await _pump(from_site, to_server, up)


class Proxy(Recorder):
    """A reverse proxy that answers some requests for a path itself, with these statuses one after the other."""

    def __init__(self, server: Path, port: int, path: str, statuses: list[int]) -> None:
        self.path, self.statuses, self.passed = path, statuses, 0
        super().__init__(server, port)

    async def _up(
        self,
        from_site: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        to_site: asyncio.StreamWriter,
        up: bytearray,
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await from_site.readuntil(b"\r\n\r\n")
                sizes = re.findall(rb"content-length: (\d+)", head.lower())
                body = await from_site.readexactly(int(sizes[0]) if sizes else 0)
                ours = head.split()[1].decode() == self.path
                if ours and self.statuses:
                    to_site.write(f"HTTP/1.1 {self.statuses.pop(0)} Fault\r\ncontent-length: 0\r\n\r\n".encode())
                    await to_site.drain()
                    continue
                self.passed += ours
                to_server.write(head + body)
                await to_server.drain()
        to_server.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            kept += data
            target.write(data)
            await target.drain()
    target.close()
