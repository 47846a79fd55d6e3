"""``status.json``: how far a federation is, as its server writes it down while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from fedekd.errors import FedekdError
from fedekd.files import owner_only
from fedekd.runs.federation_report import RefusedAnswer
from fedekd.validation import parse_json, validator

STATUS = "status.json"  # in the server's state


class SiteStatus(TypedDict):
    """Times are seconds since 1970."""

    online: bool
    version: str
    """Of its fedekd; nothing where it has not told."""
    asked: float | None
    """When it was last sent something, and when it last answered."""
    answered: float | None
    seconds: float | None
    """Between the two, of the last visit that it answered."""
    answers: int
    counted: int
    """Visits in which its answer counted."""
    failures: int
    bytes_up: int
    bytes_down: int
    epsilon: float | None
    """Spent so far, where the site has a privacy budget."""
    error: str


class FederationStatus(TypedDict):
    fedekd: str
    federation: str
    method: str
    rounds: int
    aggregation: NotRequired[str]  # of a server that tells it
    visits: int
    done: int
    """Visits that are complete."""
    stage: str
    complete: bool
    began: float
    """When what is being done now began."""
    updated: float
    deadline: float
    sites: dict[str, SiteStatus]
    refused: list[RefusedAnswer]
    """The last answers that did not count."""


class State(TypedDict):
    """What `status` tells of a server and of a site."""

    fedekd: str
    name: str
    running: bool
    certificates: dict[str, float]
    """By file, when it ends."""
    problems: list[str]
    free_bytes: int
    log: list[str]
    """Its last lines."""


class ServerState(State):
    kind: Literal["server"]
    complete: bool
    federation: FederationStatus | None
    away: list[str]
    """Sites that may join and never have."""


class AuditState(TypedDict):
    """Of a site's audit log, as far as it can be believed."""

    entries: int
    last: str | None
    problem: str


class SiteFederation(TypedDict):
    """A federation as one of its sites has it on disk."""

    method: str | None
    rounds: int | None
    aggregation: str
    visits: int
    """Those that are complete."""
    last: str | None
    answer: str | None
    """To the last message, and when it was."""
    failures: int
    bytes_up: int
    bytes_down: int
    epsilon: float | None
    complete: bool
    result: bool
    """Whether the site has had its last visit."""


class SiteState(State):
    kind: Literal["site"]
    connected: bool
    since: float | None
    """When it connected or lost its connection, if it runs."""
    federations: dict[str, SiteFederation]
    audit: AuditState
    refused_joins: int
    """Within a day."""


def read_status(state: Path) -> FederationStatus | None:
    """None where there is none: the federation has not begun, or its server is of an older version."""
    path = state / STATUS
    try:
        content = parse_json(path.read_bytes())
        validator(FederationStatus)(content)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise owner_only(path) from None
    except (OSError, ValueError, TypeError) as error:
        raise FedekdError(f"cannot read {path}: {error}; move it away, the server writes it anew") from None
    return cast("FederationStatus", content)
