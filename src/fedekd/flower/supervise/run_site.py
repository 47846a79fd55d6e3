"""``fedekd site run``: a SuperNode and an executor, kept alive until they are told to end, the server has ended with
its federation, or nothing helps any more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.files import write_whole
from fedekd.flower import need_flower
from fedekd.flower.patches import BEATING, SKIPPED
from fedekd.flower.saved_state import locked
from fedekd.flower.settings import ENDED, NO_RESULT, OFFERED, SiteSettings, read_site
from fedekd.flower.setup.certificates import ends_soon, read_certificate
from fedekd.flower.setup.connection import Connection, NotChecked
from fedekd.flower.setup.keys import read_node_key, readable_by_others, renew_secret
from fedekd.flower.site.audit import record
from fedekd.flower.supervise.diagnosis import NOT_LET_IN, SILENT, log_of, why_not_connected, why_supernode_ended
from fedekd.flower.supervise.executor import OWN_APP
from fedekd.flower.supervise.launch import LAUNCH
from fedekd.flower.supervise.logs import Tail
from fedekd.flower.supervise.processes import AGAIN, Child, command, environment, say, sole_owner, stop, stopping

PAUSE = 3.0  # seconds before a SuperNode is started again
LOST = 60  # seconds a SuperNode tries to reach a server that does not answer before it is started anew
LOOK = 0.5  # seconds between two looks at the processes
GONE = 40  # seconds after which the server does not count a broken connection any more, and to spare
NEW_CA = "ask the server's administrator for the new one"
CONNECTION = "connection.json"  # file in the site's state: whether there is one
YOUNG, CRASHES = 60, 5  # an executor that ends so young, so many times in a row, is broken


def run_site(path: str | Path, *, app: str = OWN_APP) -> None:
    """Join the federation and stay until the server has ended with it; anything else that ends it is an error."""
    need_flower()
    site = read_site(path)
    file = Path(path).expanduser().absolute()
    read_node_key(site.key)
    read_certificate(site.ca, "get it from the server's administrator, or set another `ca`")
    with sole_owner(site.state):
        record(site.state, "start", fedekd=__version__, server=site.server)
        for warning in filter(None, (ends_soon(site.ca, NEW_CA), readable_by_others(site.key))):
            say(f"site {site.name}: {warning}")
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
        self.offer = self._offer()  # whether one is waiting for the administrator's decision
        self.crashes = 0
        self.known: tuple[bool, str] | None = None  # of the connection, as it was last written down

    def run(self) -> None:
        renew_secret(self.secret)
        with stopping(self.children, AGAIN):
            self.say(f"site {self.site.name}: connecting to {self.site.server}")
            self._note("")
            node, executor = self.start_node(), self.start_executor()
            heard = Tail(node.log, self._hear)
            while True:
                time.sleep(LOOK)
                self._look_at(node)
                heard.look()
                if self._accepted():  # the server asks a site that refused again when it connects anew
                    self.say(
                        f"site {self.site.name}: the offer was accepted; connecting again, so that the server asks"
                    )
                    stop([node, executor])
                    self.children.clear()
                    self.connected = False
                    node, executor = self.start_node(), self.start_executor()
                if executor.code is not None:
                    executor = self._restart_executor(executor)
                if node.code is not None:
                    if self.connected:  # its work in hand is lost: nobody shall finish it beside the next one
                        self._end(executor)
                        executor = self.start_executor()
                    if self.over and why_supernode_ended(node).startswith(SILENT):
                        self.told.look()
                        self._check_result()
                        self.say(f"site {self.site.name}: the server has ended, and so does this site")
                        return
                    node = self._restart_node(node)

    def _look_at(self, node: Child) -> None:
        self.told.look()
        if not self.connected and any("SuperNode ID" in line for line in node.lines()):
            self.connected, self.reasons = True, []
            self.say(f"site {self.site.name}: connected")
            self._note("")
        if self.connected:
            self.last_good = time.monotonic()
        elif reason := why_not_connected(log_of(node)):
            self._say_why(reason)
        self.over = self.over or bool(self._ended() - self.ended)
        waited = time.monotonic() - self.last_good
        if waited > self.site.give_up:
            reason = (
                why_not_connected(log_of(node)) or (self.reasons or [why_supernode_ended(node)])[-1]
            )  # a new one knows none yet
            raise FedekdError(
                f"site {self.site.name}: no connection with {self.site.server} for {waited:.0f} s, given up: "
                f"{reason}; `fedekd site check {self.file}` says more"
            )

    def _hear(self, line: str) -> None:
        """Of heartbeats that did not get through, and of those that do again."""
        if self.over:  # no wonder
            return
        if SKIPPED in line:
            problem = f"the server does not accept this site's heartbeat ({line.partition(f'{SKIPPED}: ')[2]})"
            self.say(f"site {self.site.name}: {problem}; trying again")
            self._note(problem)
        elif BEATING in line:
            self.say(f"site {self.site.name}: connected again")
            self._note("")

    def _note(self, problem: str) -> None:
        """Write down whether there is a connection, for `fedekd site status`."""
        if self.known != (now := (self.connected and not problem, problem)):
            self.known = now
            about = {"connected": now[0], "since": time.time(), "problem": problem}
            with locked(self.site.state):  # whoever holds the lock removes unfinished files of others
                write_whole(self.site.state / CONNECTION, json.dumps(about).encode() + b"\n", "`state`")

    def _ended(self) -> set[tuple[Path, int]]:
        """Where it is written that the server has said that a federation is complete, and when it last did."""
        return {(path, path.stat().st_mtime_ns) for path in self.site.state.glob(f"*/{ENDED}")}

    def _check_result(self) -> None:
        """Raise where this site has none of a federation that has ended: a service is then started again, and there
        when its result can be had."""
        for path, _ in self._ended() - self.ended:
            if path.read_text().strip() == NO_RESULT:
                raise FedekdError(
                    f"site {self.site.name}: the server has ended, and this site has no result of federation "
                    f"{path.parent.name}; start it again, and ask the server's administrator to run `fedekd server "
                    "finish`"
                )

    def _offer(self) -> bool:
        return (self.site.state / OFFERED).exists()

    def _accepted(self) -> bool:
        """Whether the administrator has accepted an offer since the last look: it is then no longer kept."""
        before, self.offer = self.offer, self._offer()
        return before and not self.offer

    def _restart_node(self, node: Child) -> Child:
        self._end(node)
        self.connected = False
        reason = why_supernode_ended(node)
        self._say_why(self._why_not_let_in() if reason == NOT_LET_IN else reason)
        time.sleep(PAUSE)
        return self.start_node()

    def _why_not_let_in(self) -> str:
        """Flower gives one answer to a key that it does not have, and to one that is connected already."""
        connection = Connection(self.site)
        try:
            connection.check()
            connection.known()
        except NotChecked:
            return NOT_LET_IN
        except FedekdError as error:
            return f"the server does not let this site in: {error}" if connection.works else NOT_LET_IN
        if time.monotonic() - self.last_good < GONE:
            return (
                "the server has only just started, or still counts this site's last connection, for some twenty seconds"
            )
        return (
            "the server does not let this site in: another machine is connected with this site's key; stop `fedekd "
            "site run` there, or, if that is another site, make a key for this one with `fedekd site key`"
        )

    def _say_why(self, reason: str) -> None:
        """Each reason once, until there is a connection again."""
        if self.over and reason.startswith(SILENT):
            return
        self._note(reason)
        if reason not in self.reasons:
            self.reasons.append(reason)
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
        return self.start_executor()

    def _end(self, child: Child) -> None:
        child.reap()
        self.children.remove(child)

    def start_node(self) -> Child:
        site = self.site
        child = Child(
            "supernode",
            command(
                LAUNCH,
                "supernode",
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

    def start_executor(self) -> Child:
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
