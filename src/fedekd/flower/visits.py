"""How a method's steps fall into visits: what lies between two exchanges is the work of one message.

A site is visited once for each exchange and once more after the last. In a visit it receives the model that the
exchange before gave, does the steps up to the next exchange and sends its model for that one. With ``|`` where one
visit ends and the next begins, the rounds of Algorithm 1 (FedeKD) and of FedAvg lie like this::

    FedeKD   distil proxy 1 |send, receive| update private 1, distil proxy 2 |send, receive| update private 2
    FedAvg   train 1        |send, receive| train 2                          |send, receive|

so R rounds with one exchange each cost R + 1 visits. The last visit sends no model: the site finishes its round and
tells how it did.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedekd.methods.base import Exchange, Method, Remember, Train


@dataclass(frozen=True)
class Visit:
    """One message's worth of work: receive, do the steps, send."""

    number: int
    receives: Exchange | None
    """The exchange whose answer the visit begins with; None in the first."""
    work: tuple[tuple[int, Train | Remember], ...]
    """Each step with the round it belongs to."""
    sends: Exchange | None
    """The exchange that the visit ends with; None in the last."""


def visits(method: Method, rounds: int) -> tuple[Visit, ...]:
    """The visits of a whole run; a method that exchanges nothing has one."""
    found: list[Visit] = []
    receives: Exchange | None = None
    work: list[tuple[int, Train | Remember]] = []
    for round in range(rounds):
        for step in method.steps(round):
            if isinstance(step, Exchange):
                found.append(Visit(len(found), receives, tuple(work), step))
                receives, work = step, []
            else:
                work.append((round, step))
    return (*found, Visit(len(found), receives, tuple(work), None))


def alone(visit: int, visits: int, rounds: int) -> int:
    """How many rounds of training alone a site has done after a visit: as evenly spread as visits allow."""
    return rounds * (visit + 1) // visits
