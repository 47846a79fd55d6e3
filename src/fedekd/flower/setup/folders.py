"""Which folders of a real federation a person may name: a server's or a site's own, or the state in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.files import owner_only
from fedekd.flower.settings import read_server, read_site


def server_state(folder: Path) -> Path | None:
    """The state of the server that the folder belongs to; None if it belongs to none."""
    if (folder / "server.toml").is_file():
        return read_server(folder / "server.toml").state
    known = "complete" in read_object(folder / "report.json") or (folder / "flower" / "superlink.log").is_file()
    return folder if known else None


def site_state(folder: Path) -> Path | None:
    """The same for a site; the folder of one of its federations is taken too."""
    if (folder / "site.toml").is_file():
        return read_site(folder / "site.toml").state
    known = _is_site_report(folder / "report.json") or (folder / "flower" / "supernode.log").is_file()
    return folder if known else None


def site_reports(state: Path) -> list[Path]:
    """The files that a site keeps of the federations that are complete, the newest last."""
    check_readable(state)
    files = sorted([*state.glob("report.json"), *state.glob("*/report.json")], key=lambda path: path.stat().st_mtime)
    found = [path for path in files if _is_site_report(path)]
    if not found:
        raise FedekdError(f"no federation of the site in {state} is complete yet; its log is {state / 'log'}")
    return found


def _is_site_report(path: Path) -> bool:
    """A server's report has no difference of its own; whether the rest is as it should be, its reader says."""
    return "delta" in read_object(path)


def check_readable(state: Path) -> None:
    """Else what is in it would seem not to be there."""
    if state.is_dir() and not os.access(state, os.R_OK | os.X_OK):
        raise owner_only(state)


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is missing, damaged or of another kind."""
    try:
        content = json.loads(path.read_text())
    except PermissionError:
        raise owner_only(path) from None
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
