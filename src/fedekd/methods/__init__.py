"""The methods, one file each. A new file with a registered class in it is a new method; nothing else changes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

from fedekd.errors import FedekdError, unknown
from fedekd.methods.base import ClientInit, Copy, Exchange, Method, Remember, Step, Train
from fedekd.methods.batch import Batch
from fedekd.methods.twins import CONTROLS, twin
from fedekd.methods.uploads import Uploads
from fedekd.objects import import_object

FAMILIES = {
    "paper": "FedeKD and what it is compared with in its study",
    "personalised": "one architecture, and something of each client's own",
    "distillation": "predictions, prototypes or layers travel; models may differ",
    "optimisation": "against drift, and at the server",
    "alone": "nothing is sent: what a site can do by itself",
}
M = TypeVar("M", bound=type[Method])
_REGISTRY: dict[str, Method] = {}


def register(
    name: str, *, family: str = "", cite: str = "", also: str = "", **variants: Mapping[str, Any]
) -> Callable[[M], M]:
    """Class decorator: make a method known by ``name``, and its variants by ``name-variant``.

    ``@register("fedgh", family="distillation", reset={"rate": 0.0})`` knows "fedgh" and "fedgh-reset", and puts the
    first into the group "distillation". ``cite`` tells authors, venue and year; ``also`` names another group that it
    belongs to.
    """

    def enter(cls: M) -> M:
        for taken in (name, *(f"{name}-{variant}" for variant in variants)):
            other = type(_REGISTRY.get(taken))
            if taken in _REGISTRY and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise FedekdError(f"method name {taken!r} is taken by {other.__module__}.{other.__qualname__}")
        if family not in ("", *FAMILIES):
            raise unknown(f"family of method {name!r}", family, FAMILIES)
        cls.name, cls.family, cls.cite, cls.also = name, family, cite, also  # of its own, never of the class it extends
        _REGISTRY[name] = cls()
        for variant, changes in variants.items():
            _REGISTRY[f"{name}-{variant}"] = replace(cls(), **changes)
        return cls

    return enter


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def known() -> dict[str, Method]:
    """Every registered method with its default hyper-parameters, by name."""
    _import_all()
    return dict(_REGISTRY)


def groups() -> dict[str, tuple[str, ...]]:
    """What `--methods NAME` stands for besides a method's own name: families, all of them, and kinds of variants.

    A variant belongs to the groups that the fields it changes name in their metadata, {"variants": "controls"}. What a
    method does by default is one of its energies, but none of its controls.
    """
    found: dict[str, list[str]] = {"all": [], **{family: [] for family in FAMILIES}, "energies": [], "controls": []}
    methods = known()
    for name in sorted(methods, key=lambda name: (name != "fedekd", name)):
        method = methods[name]
        base = methods.get(method.name, method)
        marked = {f.name: f.metadata["variants"] for f in fields(method) if "variants" in f.metadata}
        changed = {group for field, group in marked.items() if getattr(method, field) != getattr(base, field)}
        if name == method.name:
            changed |= {group for group in (method.family, method.also) if group}
            changed |= {"energies"} & set(marked.values())
        for group in changed:
            found.setdefault(group, []).append(name)
    found["all"] = [name for family in FAMILIES for name in found[family]]
    return {group: tuple(names) for group, names in found.items()}


def get(name: str, **parameters: Any) -> Method:
    """The method of that name with ``parameters`` in place of its defaults.

    ``name`` may also be ``package.module:Class`` for a method that is not registered, and ``NAME@CONTROL`` for a twin
    of any method: see ``fedekd.methods.twins``.
    """
    if "@" in name:
        plain, _, control = name.rpartition("@")
        return twin(get(plain, **parameters), control)
    methods = known()
    if name in methods:
        method = methods[name]
    elif ":" in name:
        method = _imported(name)
    else:
        raise unknown("method", name, methods)
    return with_parameters(method, parameters)


def with_parameters(method: Method, parameters: Mapping[str, Any]) -> Method:
    kinds = {f.name: f.type for f in fields(method)}
    converted = {}
    for key, value in parameters.items():
        if key not in kinds and hasattr(method, key) and not hasattr(Method, key):
            remedy = f"write its type, as in `{key}: float = 1.0`, and @dataclass(frozen=True) above the class"
            raise FedekdError(f"{key} of {type(method).__name__} is no parameter; {remedy}")
        if key not in kinds:
            raise unknown(f"parameter of method {method.name!r}", key, kinds)
        default = getattr(method, key)
        if kinds[key] in (float, "float") and isinstance(default, int):  # `mu: float = 1` takes 0.5
            default = float(default)
        converted[key] = _converted(f"{method.name}.{key}", default, value)
    return replace(method, **converted)


def _converted(what: str, default: Any, value: Any) -> Any:
    """``value`` in the type of the default; "0.5" becomes 0.5 and "false" becomes False."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(default, int) and float(value) != int(float(value)):
            raise ValueError
        return type(default)(value)
    except (ValueError, KeyError, OverflowError, TypeError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}.get(type(default), "text")
        hint = f"; in a study, vary.{what} takes a list" if isinstance(value, list) else ""
        raise FedekdError(f"{what} must be {kind}, got {value!r}{hint}") from None


def _imported(path: str) -> Method:
    found = import_object(path, "method", "package.module:Class")
    try:
        method = found() if isinstance(found, type) and issubclass(found, Method) else found
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise FedekdError(f"cannot import method {path!r} (package.module:Class): {error}") from None
    if not isinstance(method, Method) or type(method) is Method:
        raise FedekdError(f"{path!r} is not a fedekd Method")
    if not method.name:
        type(method).name = path.partition(":")[2].lower()
    return method


def __getattr__(name: str) -> Any:
    if name == "Beginning":
        raise ImportError("`Beginning` is called `ClientInit` now; rename it")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CONTROLS",
    "FAMILIES",
    "Batch",
    "ClientInit",
    "Copy",
    "Exchange",
    "Method",
    "Remember",
    "Step",
    "Train",
    "Uploads",
    "get",
    "groups",
    "known",
    "register",
    "twin",
    "with_parameters",
]
