"""Federated learning that tells each site whether joining was worth it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedekd.api import run
    from fedekd.runs.results import RunResults, load

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported: who waits leaves its core to others

__version__ = "0.1.0"
__all__ = ["RunResults", "__version__", "load", "run"]

_HOME = {"run": "fedekd.api", "load": "fedekd.runs.results", "RunResults": "fedekd.runs.results"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedekd' has no attribute {name!r}")


class _OnFirstUse(ModuleType):
    """Stands for a module in ``from fedekd import NAME``, so that listing the methods does not wait for torch."""

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)


gate: Any = _OnFirstUse("fedekd.gate")
conformal: Any = _OnFirstUse("fedekd.conformal")
pooling: Any = _OnFirstUse("fedekd.pooling")
prototypes: Any = _OnFirstUse("fedekd.prototypes")
reassembly: Any = _OnFirstUse("fedekd.reassembly")
