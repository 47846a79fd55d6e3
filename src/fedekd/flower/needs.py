"""Flower and what comes with it are an extra: say so where they are missing."""

from __future__ import annotations

import importlib.util

from fedekd.errors import FedekdError


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise FedekdError("Flower is not installed; get it with: pip install 'fedekd[flower]'")
