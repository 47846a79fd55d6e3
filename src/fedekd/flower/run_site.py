"""``fedekd site run``: a SuperNode and an executor, kept alive until they are told to end or nothing helps any more."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower.executor import OWN_APP
from fedekd.flower.keys import write_new
from fedekd.flower.needs import need_flower
from fedekd.flower.processes import Child, alone, command, environment, say, script, stopping
from fedekd.flower.site_file import Site, read_site

PAUSE = 5.0  # seconds before a SuperNode is started again
LOST = 60  # seconds a SuperNode tries to reach a server that does not answer before it is started anew
CRASHES = 5  # of an executor that never got to work, before it counts as broken


def run_site(
    path: str | Path, *, app: str = OWN_APP, say: Callable[[str], None] = say, once_up: Callable[[], None] | None = None
) -> None:
    """Join the federation and stay; returns only by an error or a signal. ``once_up`` is called when connected."""
    need_flower()
    site = read_site(path)
    file = Path(path).expanduser().absolute()
    with alone(site.state):
        _Supervisor(site, file, app, say, once_up).run()


class _Supervisor:
    def __init__(
        self, site: Site, file: Path, app: str, say: Callable[[str], None], once_up: Callable[[], None] | None
    ) -> None:
        self.site, self.file, self.app, self.say, self.once_up = site, file, app, say, once_up
        self.folder = site.state / "flower"
        self.secret = self.folder / "secret"
        self.children: list[Child] = []
        self.reason = ""
        self.crashes = 0

    def run(self) -> None:
        self.secret.unlink(missing_ok=True)
        write_new(self.secret, secrets.token_bytes(32), private=True)
        with stopping(self.children):
            node, executor = self._start_node(), self._start_executor()
            connected, last_good = False, time.monotonic()
            self.say(f"site {self.site.name}: connecting to {self.site.server}")
            while True:
                time.sleep(0.5)
                if not connected and any("SuperNode ID" in line for line in node.lines()):
                    connected = True
                    self.reason = ""
                    self.say(f"site {self.site.name}: connected")
                    if self.once_up:
                        self.once_up()
                if connected:
                    last_good = time.monotonic()
                if executor.code is not None:
                    executor = self._restart_executor(executor)
                if node.code is not None:
                    connected = False
                    node = self._restart_node(node, last_good)

    def _restart_node(self, node: Child, last_good: float) -> Child:
        node.reap()
        self.children.remove(node)
        reason = why_ended(node)
        waited = time.monotonic() - last_good
        if waited > self.site.give_up:
            raise FedekdError(
                f"site {self.site.name}: no connection with {self.site.server} for {waited:.0f} s, given up; "
                f"{reason}; `fedekd site check {self.file}` says more"
            )
        if reason != self.reason:
            self.reason = reason
            self.say(f"site {self.site.name}: {reason}; trying again for {self.site.give_up - waited:.0f} s")
        time.sleep(PAUSE)
        return self._start_node()

    def _restart_executor(self, executor: Child) -> Child:
        executor.reap()
        self.children.remove(executor)
        lines = executor.lines()
        worked = any("flwr-clientapp" in line or "Starting" in line for line in lines)
        self.crashes = 0 if worked else self.crashes + 1
        last = lines[-1] if lines else f"status {executor.code}"
        if self.crashes >= CRASHES:
            raise FedekdError(f"site {self.site.name}: the app does not start: {last}; see {executor.log}")
        self.say(f"site {self.site.name}: the executor ended ({last}) and is started again")
        time.sleep(0.5 * self.crashes)
        return self._start_executor()

    def _start_node(self) -> Child:
        site = self.site
        child = Child(
            "supernode",
            [
                script("flower-supernode"),
                *("--superlink", site.server, "--root-certificates", str(site.ca)),
                *("--auth-supernode-private-key", str(site.key), "--max-wait-time", str(LOST)),
                *("--node-config", f'site-file="{self.file}"'),
                *("--isolation", "process", "--superexec-auth-secret-file", str(self.secret)),
                *("--host", "127.0.0.1", "--port", str(site.port)),
            ],
            self.folder / "supernode.log",
            environment(self.folder / "home"),
        )
        self.children.append(child)
        return child

    def _start_executor(self) -> Child:
        threads = str(self.site.threads or os.cpu_count() or 1)
        child = Child(
            "executor",
            command(
                "fedekd.flower.executor",
                *("--address", f"127.0.0.1:{self.site.port}", "--secret", str(self.secret), "--app", self.app),
            ),
            self.folder / "executor.log",
            environment(self.folder / "home", OMP_NUM_THREADS=threads, FEDEKD_SITE_FILE=str(self.file)),
        )
        self.children.append(child)
        return child


def why_ended(node: Child) -> str:
    """One line on why a SuperNode ended, from its log."""
    text = "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in node.lines())
    for pattern, meaning in (
        (
            "CERTIFICATE_VERIFY_FAILED",
            "the server's certificate is not signed by this site's `ca`, or names another host",
        ),
        ("could not be activated|NODE_ACTIVATION|No SuperNode found", "the server does not let this site in"),
        ("Invalid SuperNode authentication|401", "the server does not accept this site's signature"),
        ("address already in use", "another program uses this site's port; set another `port`"),
        ("Connection refused|ConnectError|Name or service|Temporary failure|timed out", "the server does not answer"),
    ):
        if found := re.search(pattern, text):
            return f"{meaning} ({_sentence(text, found)})"
    last = text.strip().splitlines()[-1] if text.strip() else "no output"
    return f"the SuperNode ended with status {node.code}: {last.strip()}"


def _sentence(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return " ".join(text[start : end if end >= 0 else None].split())[:200]
