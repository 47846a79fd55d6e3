"""``fedekd server run``: a SuperLink, kept alive, and one federation run on it, submitted again until it is complete.

Flower marks a run as failed when its SuperLink dies. The app keeps every finished round on disk, so that a new run
goes on where the last one stopped.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower import need_flower
from fedekd.flower.server import control
from fedekd.flower.server.control import admit
from fedekd.flower.settings import VISITS_DONE, ServerSettings, checked_address, read_server
from fedekd.flower.setup.certificates import check_certificate, ends_soon, local_address
from fedekd.flower.setup.check import check_method, check_schema
from fedekd.flower.setup.keys import read_public_keys, renew_secret, shared_keys
from fedekd.flower.supervise.diagnosis import disk_full, why_superlink_ended
from fedekd.flower.supervise.launch import LARGEST, LAUNCH, NODES, TOLD
from fedekd.flower.supervise.logs import Tail
from fedekd.flower.supervise.processes import AGAIN, Child, command, environment, say, sole_owner, stop, stopping
from fedekd.runs.federation_report import FederationReport, read_report

RENEW = "make a new one with `fedekd server renew`"
STARTING = 60.0  # seconds a SuperLink may take to answer
PAUSE = 2.0  # seconds before it is started again
FAILURES = 3  # of a run that made no progress, before it counts as hopeless
LOOK, ASK = 0.5, 2.0  # seconds between two looks at files and processes, and two questions to the SuperLink
SILENT = 120.0  # seconds a living SuperLink may leave questions unanswered


def run_server(
    path: str | Path,
    *,
    server_app: str = control.SERVER_APP,
    client_app: str = control.CLIENT_APP,
    finish: float = 0.0,
    say: Callable[[str], None] = say,
) -> FederationReport:
    """Run the federation to its end and return its report.

    ``finish``: it is at its end; wait so many seconds for the sites that were away in the last visit.
    """
    need_flower()
    server = read_server(path)
    file = Path(path).expanduser().absolute()
    with sole_owner(server.state):
        report = read_report(server.state)
        complete = report is not None and report.complete
        if finish and not complete:
            raise FedekdError(f"the federation is not complete yet; go on with it: fedekd server run {file}")
        if report and finish and not report.missing:
            say("every site has its result already")
            return report
        if report and complete and not finish:
            say(f"the federation is complete already; for another run set another `state` in {file}")
            return _told(report, file, say)
        if not finish:
            (server.state / "report.json").unlink(missing_ok=True)  # what stopped the last run need not stop this one
        _check(server, file)
        return _told(ServerSupervisor(server, file, (server_app, client_app), say, finish).run(), file, say)


def _told(report: FederationReport, file: Path, say: Callable[[str], None]) -> FederationReport:
    if report.missing:
        say(
            f"no result yet: {', '.join(report.missing)}; `fedekd server finish {file}` gives them theirs when they "
            "come back"
        )
    return report


def _check(server: ServerSettings, file: Path) -> None:
    """Raise for what would stop the federation later on, while nothing is lost yet."""
    check_certificate(server)
    keys, unread = read_public_keys(server.nodes)
    for why in unread.values():
        raise FedekdError(f"{why}; mend it or take it away, and start again")
    for why in shared_keys(keys).values():
        raise FedekdError(f"in {server.nodes}, {why}")
    check_schema(server, file)
    check_method(server, file)


class ProcessDied(Exception):
    """One of our processes ended, or does not answer."""


class ServerSupervisor:
    def __init__(
        self,
        server: ServerSettings,
        file: Path,
        apps: tuple[str, str],
        say: Callable[[str], None],
        finish: float = 0.0,
    ) -> None:
        self.server, self.file, self.apps, self.say, self.finish = server, file, apps, say, finish
        self.folder = server.state / "flower"
        self.secret = self.folder / "secret"
        self.address = local_address(server)
        self.children: list[Child] = []
        self.told = Tail(server.state / "log", say)
        self.warned = Tail(
            self.folder / "superlink.log",
            lambda line: say(line.removeprefix(TOLD)) if line.startswith(TOLD) else None,
        )
        self.progress = self._progress()
        self.last_progress = time.monotonic()
        self.failures = 0
        self.keys: list[tuple[str, int, int]] | None = None  # as they lay in `nodes` when that was last looked through
        self.problems: dict[Path, str] = {}  # with them, as they were said
        self.certificate = _certificate_times(server)
        self.warned_on = ""

    def run(self) -> FederationReport:
        with stopping(self.children, AGAIN):
            while True:
                try:
                    with self.superlink():
                        report = self._federation()
                except ProcessDied as died:
                    self._check_disk(str(died))
                    self._check_time(str(died))
                    self.say(f"{died}; starting again")
                    time.sleep(PAUSE)
                    continue
                self.told.look()
                return report

    @contextlib.contextmanager
    def superlink(self) -> Iterator[None]:
        """A SuperLink that answers, and the process that runs the ServerApp; both gone at the end."""
        server = self.server
        renew_secret(self.secret)
        _, port = checked_address(server.address, "address")
        own = {LARGEST: str(int(server.largest * 1e6)), NODES: str(server.nodes)}
        env = environment(self.folder / "home", self.file.parent, **own)
        link = Child(
            "superlink",
            command(
                LAUNCH,
                "superlink",
                *("--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)),
                *("--ssl-ca-certfile", str(server.ca), "--enable-supernode-auth"),
                *("--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"),
                *("--isolation", "process", "--superexec-auth-secret-file", str(self.secret)),
                *("--host", server.listen, "--port", str(port)),
            ),
            self.folder / "superlink.log",
            env,
        )
        self.children.append(link)
        try:
            self._wait_until_up(link)
            self.children.append(
                Child(
                    "superexec",
                    command(
                        LAUNCH,
                        "superexec",
                        *("--runtime-api-address", self.address, "--root-certificates", str(server.ca)),
                        *("--superexec-auth-secret-file", str(self.secret), "--parent-pid", str(link.process.pid)),
                    ),
                    self.folder / "superexec.log",
                    env,
                )
            )
            self.say(f"listening on {server.listen}:{port} for sites that connect to {server.address}")
            yield
        finally:
            stop(self.children)
            self.children.clear()

    def _wait_until_up(self, link: Child) -> None:
        end = time.monotonic() + STARTING
        while True:
            if link.code is not None:
                self._check_disk("\n".join(link.lines()))
                why = why_superlink_ended(link.lines(), self.server) or f"{_last(link)}; see {link.log}"
                raise FedekdError(f"the SuperLink does not start: {why}")
            try:
                with control.connected(self.address, self.server.ca) as superlink:
                    superlink.online()
                return
            except control.Unreachable as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise FedekdError(
                        f"{self.server.certificate} is not signed by {self.server.ca}, has expired or does not name "
                        f"{self.address}: {error}"
                    ) from None
                if time.monotonic() > end:
                    raise ProcessDied(f"the SuperLink does not answer after {STARTING:.0f} s ({error})") from None
                time.sleep(0.3)

    def _federation(self) -> FederationReport:
        """Submit runs until one is complete."""
        with self._calls() as superlink:
            self.admit_sites(superlink)
        while True:
            with self._calls() as superlink:
                run = superlink.submit({"server-file": str(self.file), "finish": str(self.finish)}, *self.apps)
            state = self._until_finished(run)
            report = read_report(self.server.state)
            if report and report.error:
                self.told.look()
                raise FedekdError(f"the federation stopped: {report.error}")
            if state.outcome == "completed":
                if report is None:
                    raise FedekdError(f"the run ended and left no report; see {self.server.state}/log")
                if report.complete:
                    return report
            self.failures += 1
            details = " ".join(state.details.split()).removeprefix("ServerApp failed with exception: ")
            why = details or f"it ended as {state.outcome}"
            self._check_disk(why)
            if self.failures >= FAILURES:
                raise FedekdError(
                    f"the run failed {FAILURES} times without progress: {why}; see {self.server.state}/log"
                )
            self._check_time(why)
            self.say(f"the run failed ({why}); submitting it again")

    def _until_finished(self, run: int) -> control.RunState:
        report = _changed(self.server.state / "report.json")
        asked = answered = time.monotonic()
        while True:
            time.sleep(LOOK)
            self.told.look()
            self.warned.look()
            for child in self.children:
                if child.code is not None:
                    raise ProcessDied(f"{child.name} ended ({_last(child)})")
            now = time.monotonic()
            if (progress := self._progress()) != self.progress:
                self.progress, self.last_progress, self.failures = progress, now, 0
            self._check_time("the run goes on, but no round has ended")
            self._look_at_certificate()
            same = self.keys in (None, self._keys()) and _changed(self.server.state / "report.json") == report
            if same and now < asked + ASK:
                continue
            asked = now
            try:
                with control.connected(self.address, self.server.ca) as superlink:
                    self.admit_sites(superlink)
                    state = superlink.state(run)
            except control.Unreachable as error:
                self._check_disk(str(error))
                if now > answered + SILENT:
                    raise ProcessDied(str(error)) from None
                continue
            answered = now
            if state.status == "finished":
                return state

    @contextlib.contextmanager
    def _calls(self) -> Iterator[control.Control]:
        try:
            with control.connected(self.address, self.server.ca) as superlink:
                yield superlink
        except control.Unreachable as error:
            raise ProcessDied(str(error)) from None

    def admit_sites(self, superlink: control.Control) -> None:
        """Have the SuperLink know the keys in `nodes`, if they changed."""
        if (keys := self._keys()) == self.keys:
            return
        found = admit(superlink, self.server.nodes)
        self.keys = None if found.again else keys
        for name in found.came:
            self.say(
                f"site {name} may join"
                + (" with its new key; the old one is no longer valid" if name in found.gone else "")
            )
        for name in found.gone:
            if name not in found.came:
                self.say(f"site {name} may no longer join; to come back it needs a new key (`fedekd site key` there)")
        for file, why in found.problems.items():
            if why != self.problems.get(file):
                self.say(why)
        self.problems = found.problems
        if not keys and not found.problems:
            self.say(f"no site may join yet: put the sites' public keys, NAME.pub, into {self.server.nodes}")

    def _keys(self) -> list[tuple[str, int, int]]:
        found = []
        for path in sorted(self.server.nodes.glob("*.pub")):
            with contextlib.suppress(OSError):
                found.append((path.name, path.stat().st_mtime_ns, path.stat().st_size))
        return found

    def _progress(self) -> str:
        """How many visits are complete. Nothing else is progress, or a run could fail for ever."""
        try:
            return (self.server.state / VISITS_DONE).read_text()
        except OSError:
            return ""

    def _look_at_certificate(self) -> None:
        """Say early that it ends, once a day; and start the SuperLink anew with one that has taken its place."""
        server = self.server
        if (now := _certificate_times(server)) != self.certificate:
            self.certificate = now
            try:
                check_certificate(server)
            except FedekdError as error:  # perhaps its key comes next
                self.say(f"the new certificate is not taken: {error}")
            else:
                raise ProcessDied("the certificate was renewed")
        if (today := time.strftime("%F")) != self.warned_on:
            self.warned_on = today
            with contextlib.suppress(FedekdError):  # one that is just being replaced
                for warning in filter(None, (ends_soon(path, RENEW) for path in (server.certificate, server.ca))):
                    self.say(warning)

    def _check_disk(self, text: str) -> None:
        """Raise where what failed, with this text, did so for want of room: trying again is of no use."""
        if why := disk_full(text, self.server, shutil.disk_usage(self.server.state).free):
            raise FedekdError(why)

    def _check_time(self, why: str) -> None:
        waited = time.monotonic() - self.last_progress
        if waited > max(self.server.give_up, self.finish + STARTING):
            raise FedekdError(f"no progress for {waited:.0f} s, given up: {why}; see {self.server.state}")


def _certificate_times(server: ServerSettings) -> tuple[int, int]:
    return _changed(server.certificate), _changed(server.key)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _last(child: Child) -> str:
    lines = [line.strip() for line in child.lines() if line.strip()]
    return f"status {child.code}" + (f", {lines[-1][:200]}" if lines else "")
