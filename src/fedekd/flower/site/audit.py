"""What a site was asked, under which terms, and what left it: a log that is only ever added to.

Each entry holds the hash of the one before it, so that none can be changed, taken out or put in later without breaking
all that follow. Whoever may write the file can still cut off its end, or write all of it anew: against that, the last
hash is also in the site's log, which `fedekd site run` hands to the journal, and `fedekd site audit --expect` looks for
one that was noted elsewhere. An entry is on the disk before what it tells of leaves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedekd.errors import FedekdError
from fedekd.files import writing
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.digests import digest

if TYPE_CHECKING:
    from fedekd.flower.protocol.wire import Packed, Payload

AUDIT = "audit.jsonl"  # in the site's state
FIRST = "0" * 64  # stands for the hash before the first entry
STEP = 1 << 16  # bytes by which the last entry is looked for from the end
ASKED = (
    "federation",
    "visit",
    "number",
    "rounds",
    "name",
    "attempt",
    "stage",
)  # words of a server that are kept, if they are short
SHORT, LONGEST = 200, 100_000  # letters of those, and of terms or a schema: of a longer one the hash is kept


def record(state: Path, event: str, **facts: Any) -> str:
    """Add an entry and return its hash; raises ``FedekdError`` where that cannot be done."""
    path = state / AUDIT
    with writing(path, "`state`"), _opened(path) as file:
        number, previous, torn = _end(file, path)
        if torn:  # an entry that a power cut broke off: what it told of has not left
            number, previous = _append(file, number + 1, previous, {"event": "broken off", "bytes": torn})
        _, last = _append(file, number + 1, previous, {"event": event, **facts})
    return last


def record_answer(state: Path, kind: str, request: Payload | None, reply: Payload) -> str:
    """An entry for a message of the server and the site's answer; ``request`` is None where it could not be read."""
    words = request.words if request else {}
    asked = {name: words[name] for name in ASKED if name in words and len(str(words[name])) <= SHORT}
    if kind == "join":
        asked |= {name: _text(words[name]) for name in ("terms", "schema") if name in words}
    return record(
        state,
        kind,
        asked=asked if request else "a message that cannot be read",
        received=_exchanged(request.models) if request else [],
        agreed=_agreed(state, asked.get("federation")),
        answer=StatusCode(int(reply.words["code"])).name.lower(),
        left={
            "exchanged": _exchanged(reply.models),
            "numbers": {name: word for name, word in reply.words.items() if name not in ("code", "name")},
        },
    )


def _exchanged(models: Mapping[str, Packed]) -> list[dict[str, Any]]:
    return [
        {"name": name[:SHORT], "bytes": sum(a.nbytes for a in one.arrays.values()), "sha256": digest(one.arrays)}
        | ({"masked": True} if one.how == "masked" else {})
        for name, one in models.items()
    ]


def _text(given: Any) -> Any:
    text = given if isinstance(given, str) else str(given)
    return text if len(text) <= LONGEST else {"letters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _agreed(state: Path, federation: Any) -> str | None:
    """The fingerprint that a federation was joined with, as `fedekd site accept` shows it."""
    try:
        return str(json.loads((state / str(federation) / "agreement.json").read_text())["offer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """For one process at a time, to add to."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.geteuid() == 0:  # the site's own user is to add to it as well
            owner = path.parent.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        yield file


def _end(file: IO[bytes], path: Path) -> tuple[int, str, int]:
    """The last entry's number and hash; and how many bytes of a broken one came after it, which are taken away."""
    size = start = file.seek(0, os.SEEK_END)
    content = b""
    while start and content.removesuffix(b"\n").count(b"\n") < 2:
        step = min(STEP, start)
        start -= step
        file.seek(start)
        content = file.read(step) + content
    whole = content[: content.rfind(b"\n") + 1]
    if torn := len(content) - len(whole):
        file.truncate(size - torn)
    if not whole:
        return 0, FIRST, torn
    try:
        last = json.loads(whole.splitlines()[-1])
        return int(last["number"]), str(last["hash"]), torn
    except (ValueError, KeyError, TypeError):
        raise FedekdError(
            f"the last line of {path} is no entry: someone has changed it; keep the file, and move it away"
        ) from None


def _append(file: IO[bytes], number: int, previous: str, facts: dict[str, Any]) -> tuple[int, str]:
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"number": number, "time": when, **facts, "previous": previous}
    entry["hash"] = _hash(entry)
    file.write(json.dumps(entry).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())
    return number, entry["hash"]


def _hash(entry: Mapping[str, Any]) -> str:
    own = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(own, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_audit(state: Path) -> Iterator[dict[str, Any]]:
    """Each entry, once it is found to be as it was written and to follow the one before; raises at the first that is
    not."""
    path, previous = state / AUDIT, FIRST
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise FedekdError(f"there is no {path}: the site has not been asked anything yet") from None
    except OSError as error:
        raise FedekdError(f"cannot read {path}: {error.strerror}; run this as its owner") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # it is just being written, or was broken off before anything left
            try:
                entry = json.loads(line)
                good = entry["hash"] == _hash(entry)
                follows = entry["previous"] == previous and entry["number"] == number
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                good = follows = False
            if not good or not follows:
                what = "was changed after it was written" if not good else "does not follow the one before it"
                raise FedekdError(f"{path}, line {number}: this entry {what}; what comes after it proves nothing")
            previous = entry["hash"]
            yield entry


def told(entry: Mapping[str, Any]) -> str:
    """An entry in a line."""
    words = [str(entry["time"]), str(entry["event"])]
    asked = entry["asked"] if isinstance(entry.get("asked"), dict) else {}
    words += [str(asked["visit"] + 1)] if type(asked.get("visit")) is int else []
    words += [str(asked["stage"])] if "stage" in asked else []
    words += [f"federation {asked['federation']}"] if "federation" in asked else []
    words += [f"agreed {entry['agreed']}"] if entry.get("agreed") else []
    words += [f"fedekd {entry['fedekd']}"] if "fedekd" in entry else []
    if "answer" in entry:
        left = entry["left"]
        sent = [
            f"{one['name']}{' (masked)' if one.get('masked') else ''}, {one['bytes']} bytes, sha256 {one['sha256']}"
            for one in left["exchanged"]
        ]
        sent += [f"{name} {value}" for name, value in left["numbers"].items()]
        words += [f"answered {entry['answer']}", f"left: {'; '.join(sent) or 'nothing else'}"]
    return "  ".join(" ".join(word.split()) for word in words)
