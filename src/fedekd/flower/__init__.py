"""A real federation on Flower: each site with its own data and private model on its own disk."""

from __future__ import annotations

import importlib.util

from fedekd.errors import FedekdError


def need_flower() -> None:
    """Flower and what comes with it are an extra: say so where they are missing."""
    if importlib.util.find_spec("flwr") is None:
        raise FedekdError("Flower is not installed; get it with: pip install 'fedekd[flower]'")
