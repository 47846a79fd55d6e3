"""Python objects by name: a user's own method, model, dataset or other class, as ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from fedekd.errors import FedekdError


def import_object(path: str, what: str, form: str = "") -> Any:
    """What ``path`` names. The error says ``what`` that should have been and, where given, the ``form`` of the path."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's and may raise anything
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise FedekdError(f"cannot import {what} {path!r}{f' ({form})' if form else ''}: {kind}{error}") from None
