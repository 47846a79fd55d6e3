"""Errors a user can cause: one line that names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedekdError(Exception):
    """Something the user can fix. The command line prints its text alone and exits with status 2."""


def in_words(error: BaseException | str) -> str:
    """An error in one line; one that is not the user's keeps its kind."""
    own = isinstance(error, (FedekdError, str))
    return " ".join((str(error) if own else f"{type(error).__name__}: {error}").split())


def unknown(kind: str, name: str, known: Iterable[str]) -> FedekdError:
    """The error for a name that is not in ``known``, with the nearest known name as a suggestion."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return FedekdError(f"unknown {kind} {name!r}; {hint}")
