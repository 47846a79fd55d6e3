"""``fedekd site run``: a SuperNode and an executor, kept alive until they are told to end, the server has ended with
its federation, or nothing helps any more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower import need_flower
from fedekd.flower.settings import ENDED, SiteSettings, read_site
from fedekd.flower.setup.keys import read_certificate, read_node_key, renew_secret
from fedekd.flower.supervise.executor import OWN_APP
from fedekd.flower.supervise.logs import Tail
from fedekd.flower.supervise.processes import Child, alone, command, environment, say, stopping

PAUSE = 3.0  # seconds before a SuperNode is started again
LOST = 60  # seconds a SuperNode tries to reach a server that does not answer before it is started anew
LOOK = 0.5  # seconds between two looks at the processes
YOUNG, CRASHES = 60, 5  # an executor that ends so young, so many times in a row, is broken


def run_site(path: str | Path, *, app: str = OWN_APP, say: Callable[[str], None] = say) -> None:
    """Join the federation and stay until the server has ended with it; anything else that ends it is an error."""
    need_flower()
    site = read_site(path)
    file = Path(path).expanduser().absolute()
    read_node_key(site.key)
    read_certificate(site.ca, "get it from the server's administrator, or set another `ca`")
    with alone(site.state):
        SiteSupervisor(site, file, app, say).run()


class SiteSupervisor:
    def __init__(self, site: SiteSettings, file: Path, app: str, say: Callable[[str], None]) -> None:
        self.site, self.file, self.app, self.say = site, file, app, say
        self.folder = site.state / "flower"
        self.secret = self.folder / "secret"
        self.children: list[Child] = []
        self.told = Tail(site.state / "log", lambda line: say(f"site {site.name}: {line}"))
        self.connected, self.last_good = False, time.monotonic()
        self.reasons: list[str] = []  # why there is no connection, as it was said since there last was one
        self.ended = self._ended()  # before we started
        self.over = False  # whether a federation has come to its end since we started
        self.crashes = 0

    def run(self) -> None:
        renew_secret(self.secret)
        with stopping(self.children):
            self.say(f"site {self.site.name}: connecting to {self.site.server}")
            node, executor = self._start_node(), self._start_executor()
            while True:
                time.sleep(LOOK)
                self._look_at(node)
                if executor.code is not None:
                    executor = self._restart_executor(executor)
                if node.code is not None:
                    if self.connected:  # its work in hand is lost: nobody shall finish it beside the next one
                        self._end(executor)
                        executor = self._start_executor()
                    if self.over and why_ended(node).startswith(SILENT):
                        self.told.look()
                        self.say(f"site {self.site.name}: the server has ended, and so does this site")
                        return
                    node = self._restart_node(node)

    def _look_at(self, node: Child) -> None:
        self.told.look()
        if not self.connected and any("SuperNode ID" in line for line in node.lines()):
            self.connected, self.reasons = True, []
            self.say(f"site {self.site.name}: connected")
        if self.connected:
            self.last_good = time.monotonic()
        elif reason := hindrance(_text(node)):
            self._say_why(reason)
        self.over = self.over or bool(self._ended() - self.ended)
        waited = time.monotonic() - self.last_good
        if waited > self.site.give_up:
            reason = hindrance(_text(node)) or (self.reasons or [why_ended(node)])[-1]  # a new one knows none yet
            raise FedekdError(
                f"site {self.site.name}: no connection with {self.site.server} for {waited:.0f} s, given up: "
                f"{reason}; `fedekd site check {self.file}` says more"
            )

    def _ended(self) -> set[Path]:
        """The federations of which the server has said that they are complete."""
        return {path.parent for path in self.site.state.glob(f"*/{ENDED}")}

    def _restart_node(self, node: Child) -> Child:
        self._end(node)
        self.connected = False
        self._say_why(why_ended(node))
        time.sleep(PAUSE)
        return self._start_node()

    def _say_why(self, reason: str) -> None:
        """Each reason once, until there is a connection again."""
        if reason not in self.reasons:
            self.reasons.append(reason)
            if self.over and reason.startswith(SILENT):  # no wonder
                return
            left = self.site.give_up - (time.monotonic() - self.last_good)
            self.say(
                f"site {self.site.name}: {reason}; trying again for {left:.0f} s; "
                f"`fedekd site check {self.file}` says more"
            )

    def _restart_executor(self, executor: Child) -> Child:
        self._end(executor)
        self.crashes = self.crashes + 1 if time.monotonic() - executor.born < YOUNG else 1
        last = (executor.lines() or [f"status {executor.code}"])[-1]
        if self.crashes >= CRASHES:
            raise FedekdError(f"site {self.site.name}: the app does not start: {last}; see {executor.log}")
        self.say(f"site {self.site.name}: the executor ended ({last}) and is started again")
        time.sleep(LOOK)
        return self._start_executor()

    def _end(self, child: Child) -> None:
        child.reap()
        self.children.remove(child)

    def _start_node(self) -> Child:
        site = self.site
        child = Child(
            "supernode",
            command(
                "fedekd.flower.supervise.supernode",
                *("--superlink", site.server, "--root-certificates", str(site.ca)),
                *("--auth-supernode-private-key", str(site.key), "--max-wait-time", str(LOST)),
                *("--node-config", f'site-file="{self.file}"'),
                *("--isolation", "process", "--superexec-auth-secret-file", str(self.secret)),
                *("--host", "127.0.0.1", "--port", str(site.port)),
            ),
            self.folder / "supernode.log",
            environment(self.folder / "home", self.file.parent),
        )
        self.children.append(child)
        return child

    def _start_executor(self) -> Child:
        threads = str(self.site.threads or os.cpu_count() or 1)
        child = Child(
            "executor",
            command(
                "fedekd.flower.supervise.executor",
                *("--address", f"127.0.0.1:{self.site.port}", "--secret", str(self.secret), "--app", self.app),
            ),
            self.folder / "executor.log",
            environment(self.folder / "home", self.file.parent, OMP_NUM_THREADS=threads),
        )
        self.children.append(child)
        return child


SILENT = "the server does not answer"
REASONS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by this site's `ca`, has expired or names another host",
    ),
    (
        "Failed to activate SuperNode",
        "the server does not let this site in: it does not have the site's public key, "
        "or still counts a connection that broke off a moment ago",
    ),
    (
        "Invalid SuperNode authentication|401 Unauthorized",
        "the server refuses this site's signature: this machine's clock is more than 5 s ahead of the server's or "
        "5 min behind it, or the server no longer knows the site's key (taken out, or a server with a new state)",
    ),
    ("address already in use", "another program uses this site's port: set another `port`"),
    ("Unable to parse the private key", "`key` is not a private key"),
    ("WRONG_VERSION_NUMBER|record layer failure", "what answers at `server` does not speak TLS: check its port"),
    (r"Server error '5\d\d", "the server has a fault of its own, which its administrator finds in its log"),
)
SILENCES = (
    ("Name or service not known|No address associated", "its name is not known: check the host in `server`"),
    ("name resolution", "its name cannot be looked up: check this machine's name server"),
    ("refused", "connection refused: it is not started, or the port in `server` is another"),
    ("timed out", "timed out: its machine is off, or a firewall is between"),
    ("unreachable|No route", "this machine has no way to it through the network"),
)


def hindrance(text: str) -> str:
    """Why a SuperNode has no connection, from what it has logged since it had one; nothing if that does not tell."""
    text = re.split("Connection successful|SuperNode ID", text)[-1]
    if found := _first(REASONS, text):
        return found
    attempts = re.findall(r"Connection attempt failed(.*)", text)
    cause = _first(SILENCES, next((words for words in reversed(attempts) if words.startswith(":")), ""))
    return f"{SILENT} ({cause})" if cause else SILENT if attempts else ""


def why_ended(node: Child) -> str:
    """One line on why a SuperNode has ended, or does not connect, from its log."""
    text = _text(node)
    if reason := hindrance(text):
        return reason
    if found := re.search(r"Exit Code: (\d+)\n(.*)", text):
        return f"the SuperNode ended with code {found[1]}: {found[2]}"
    return SILENT if node.code is None else f"the SuperNode ended with status {node.code}; see {node.log}"


def _first(meanings: Iterable[tuple[str, str]], text: str) -> str:
    return next((meaning for pattern, meaning in meanings if re.search(pattern, text)), "")


def _text(node: Child) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(node.lines()))
