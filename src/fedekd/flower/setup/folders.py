"""Which folders of a real federation a person may name: a server's or a site's own, or the state in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.settings import read_server, read_site


def server_state(folder: Path) -> Path | None:
    """The state of the server that the folder belongs to; None if it belongs to none."""
    if (folder / "server.toml").is_file():
        return read_server(folder / "server.toml").state
    known = "complete" in _content(folder / "report.json") or (folder / "flower" / "superlink.log").is_file()
    return folder if known else None


def site_state(folder: Path) -> Path | None:
    """The same for a site; the folder of one of its federations is taken too."""
    if (folder / "site.toml").is_file():
        return read_site(folder / "site.toml").state
    if is_site_report(_content(folder / "report.json")):
        return folder
    return folder if (folder / "flower" / "supernode.log").is_file() else None


def site_reports(state: Path) -> dict[Path, dict[str, Any]]:
    """What a site keeps of the federations that are complete: its own numbers, by their file, the newest last."""
    check_readable(state)
    files = sorted([*state.glob("report.json"), *state.glob("*/report.json")], key=lambda path: path.stat().st_mtime)
    found = {path: content for path in files if is_site_report(content := _content(path))}
    if not found:
        raise FedekdError(f"no federation of the site in {state} is complete yet; its log is {state / 'log'}")
    return found


def check_readable(state: Path) -> None:
    """Else what is in it would seem not to be there."""
    if state.is_dir() and not os.access(state, os.R_OK | os.X_OK):
        raise FedekdError(f"cannot read {state}: it is for its owner alone; run this as that user")


def is_site_report(content: dict[str, Any]) -> bool:
    """A file of one's own disk, so its numbers are as `finish` wrote them or it is another kind of file."""
    numbers = all(isinstance(content.get(name), (int, float)) for name in ("local", "value", "delta", "n_train"))
    return numbers and {"name", "method", "metric"} <= set(content)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except PermissionError:
        raise FedekdError(f"cannot read {path}: it is for its owner alone; run this as that user") from None
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
