"""How a method's steps fall into visits: what lies between two exchanges is the work of one message.

In a visit a site receives the answers of the exchange before, does the steps up to the next one and sends what that one
takes. With ``|`` where one visit ends and the next begins, the rounds of Algorithm 1 (FedeKD) and of FedAvg lie like
this::

    FedeKD   distil proxy 1 |send, receive| update private 1, distil proxy 2 |send, receive| update private 2
    FedAvg   train 1        |send, receive| train 2                          |send, receive|

so R rounds with one exchange each cost R + 1 visits. Exchanges in a row, with no step between them, are sent and
answered together. The last visit sends nothing: the site finishes its round and tells how it did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fedekd.engines.schedule import numbered
from fedekd.methods.base import Copy, Exchange, Method, Remember, Train

WorkItem = tuple[int, Train | Remember | Copy, int]
"""A round, one of its steps, and how often the step's first role was trained before in that round."""


@dataclass(frozen=True)
class Visit:
    """One message's worth of work: receive, do the steps, send."""

    number: int
    receives: tuple[Exchange, ...]
    """The exchanges whose answers the visit begins with; none in the first."""
    answered: int | None
    """The round that they belong to."""
    work: tuple[WorkItem, ...]
    sends: tuple[Exchange, ...]
    """The exchanges that the visit ends with; none in the last."""
    round: int | None
    """The round that these belong to."""
    last: bool = False

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that it has a part of."""
        found = {self.answered, self.round, *(round for round, _, _ in self.work)}
        return tuple(sorted(round for round in found if round is not None))

    def of(self, rounds: Collection[int]) -> Visit:
        """The visit of a site that takes part in these rounds only."""
        work = tuple(item for item in self.work if item[0] in rounds)
        return replace(self, work=work, sends=self.sends if self.round in rounds else ())


def visits(method: Method, rounds: int) -> tuple[Visit, ...]:
    """The visits of a whole run; a method that exchanges nothing has one."""
    found: list[Visit] = []
    receives, answered = tuple[Exchange, ...](), None
    work: list[WorkItem] = []
    sends: list[Exchange] = []

    def close(round: int) -> None:
        nonlocal receives, answered, work, sends
        if sends:
            found.append(Visit(len(found), receives, answered, tuple(work), tuple(sends), round))
            receives, answered, work, sends = tuple(sends), round, [], []

    for round in range(rounds):
        for step, again in numbered(method.steps(round)):
            if not isinstance(step, Exchange):
                close(round)
                work.append((round, step, again))
                continue
            if _follows(step, sends):
                close(round)
            sends.append(step)
        close(round)  # who takes part in the next round is another question
    return (*found, Visit(len(found), receives, answered, tuple(work), (), None, last=True))


def _follows(step: Exchange, before: Sequence[Exchange]) -> bool:
    """Whether what is sent would be something else after the answers to those before it."""
    loaded = {one.target for one in before} | {one.name for one in before}
    return step.name in loaded or bool(loaded & set(step.roles))


def rounds_alone(visit: int, visits: int, rounds: int) -> int:
    """How many rounds of training alone a site has done after a visit: as evenly spread as visits allow."""
    return rounds * (visit + 1) // visits


def called(step: Exchange) -> str:
    """What is exchanged, in words."""
    if step.send:
        return f"what the method calls {step.name!r}"
    return f"a part of the {step.name} model" if step.part else f"the {step.name} model"


def inwards(step: Exchange, compression: str) -> str:
    """How an upload is packed: as a difference only where both ends hold what it differs from."""
    return compression if step.send is None and step.target == step.name and not step.each else "none"


def outwards(step: Exchange, compression: str) -> str:
    """The same for the answer."""
    return compression if step.target and not step.each else "none"
