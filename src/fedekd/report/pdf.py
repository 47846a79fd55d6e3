"""A page as PDF, printed by a browser that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fedekd.errors import FedekdError

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "microsoft-edge",
    "chrome",
    "msedge",
)
PATIENCE = 120  # seconds


def pdf_of(page: str) -> bytes:
    """The PDF of an HTML page that loads nothing from elsewhere."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FedekdError(
            "Chromium, Chrome or Edge prints PDF files, and none of them is installed; let --out end in .html and "
            "print the page from any browser"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "page.html"), Path(folder, "page.pdf")
        source.write_text(page, encoding="utf-8")
        command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # which Chromium refuses to root
        command.append("--virtual-time-budget=10000")  # until the charts have drawn themselves
        command += ["--no-pdf-header-footer", f"--print-to-pdf={target}", source.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FedekdError(f"{browser} did not print the page: {type(error).__name__}") from None
        if not target.exists():
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise FedekdError(f"{browser} did not print the page: {said}")
        return target.read_bytes()
