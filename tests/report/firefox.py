"""A headless Firefox as it comes from the distribution, driven through the Marionette protocol that it has built in."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

FIREFOX = next(filter(None, map(shutil.which, ("firefox", "firefox-esr"))), None)


class Firefox:
    """One tab. A message is its length, a colon and JSON: [0, number, command, parameters], answered by
    [1, number, error, result]."""

    def __init__(self, profile: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        words = [str(FIREFOX), "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except OSError:
                assert time.monotonic() < deadline, "Firefox does not answer"
                time.sleep(0.2)
        self.stream, self.number = self.connection.makefile("rb"), 0
        self._read()
        self.ask("WebDriver:NewSession", capabilities={})
        self.ask("WebDriver:SetTimeouts", script=60_000, pageLoad=60_000)

    def _read(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            size += self.stream.read(1)
        return json.loads(self.stream.read(int(size[:-1])))

    def ask(self, command: str, **parameters: Any) -> Any:
        self.number += 1
        text = json.dumps([0, self.number, command, parameters]).encode()
        self.connection.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def visit(self, path: Path, width: int = 1280) -> None:
        self.ask("WebDriver:SetWindowRect", width=width, height=900)
        self.ask("WebDriver:Navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("return document.documentElement.dataset.drawn") != "yes":
            assert time.monotonic() < deadline, "the charts are not drawn"
            time.sleep(0.1)

    def run(self, script: str, *given: Any) -> Any:
        """A function's body in the page."""
        return self.ask("WebDriver:ExecuteScript", script=script, args=list(given))["value"]

    def run_async(self, script: str, *given: Any) -> Any:
        """The same, answering through the callback that comes after ``given``."""
        return self.ask("WebDriver:ExecuteAsyncScript", script=script, args=list(given))["value"]

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(20)
