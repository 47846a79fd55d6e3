"""Federated learning that shows every site whether joining the federation helped or harmed it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedekd.results import Result, load
    from fedekd.runs import run

__version__ = "0.1.0"
__all__ = ["Result", "__version__", "load", "run"]

_HOME = {"run": "fedekd.runs", "load": "fedekd.results", "Result": "fedekd.results"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedekd' has no attribute {name!r}")


def _load_on_first_use(name: str) -> None:
    """Make ``from fedekd import NAME`` free, so that listing the methods does not wait for torch."""
    spec = importlib.util.find_spec(f"fedekd.{name}")
    if spec is None or spec.loader is None:
        raise ImportError(f"fedekd.{name} is missing from this installation")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    globals()[name] = module


for _name in ("gate", "conformal"):
    _load_on_first_use(_name)
