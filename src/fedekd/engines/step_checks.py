"""What can be seen of a method's steps without running them: kinds, roles, splits and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedekd.engines import return_checks
from fedekd.engines.job import MOMENTUM, Job
from fedekd.errors import FedekdError
from fedekd.methods.base import SPLITS, Copy, Exchange, Method, Remember, Step, Train


def steps_of(method: Method, round: int) -> Sequence[Step]:
    return return_checks.steps(method, f"steps({round})", method.steps(round), (Train, Remember, Copy, Exchange))


def check_roles(method: Method) -> None:
    """The roles that a method names outside of its steps."""
    for what in ("roles", "reads_weights", "answers"):
        if isinstance(getattr(method, what), str):
            raise FedekdError(f"method {method.name!r}: write `{what}` as a tuple: ({getattr(method, what)!r},)")
    known = set(method.roles)
    for what in ("like", "heads"):
        for role, other in getattr(method, what).items():
            if role not in known or other not in known:
                raise FedekdError(
                    f"method {method.name!r}: `{what}` names {role!r} and {other!r}; put both into `roles`"
                )
    for role in method.reads_weights:
        if role not in known:
            raise FedekdError(f"method {method.name!r}: `reads_weights` names {role!r}, which is not among its roles")


def check_steps(job: Job, steps: Sequence[Step]) -> None:
    for step in steps:
        _check_step(job.method, step)
        inner = step.refine if isinstance(step, Exchange) and step.refine else step
        _check_step(job.method, inner)
        if getattr(inner, "split", None) == "public" and not len(job.federation.public):
            raise _needs_public(job.method)


def _check_step(method: Method, step: Step) -> None:
    kind = f"{'an' if isinstance(step, Exchange) else 'a'} {type(step).__name__} step"
    for what in ("roles", "frozen"):
        if not isinstance(getattr(step, what, ()), tuple):
            raise FedekdError(
                f'method {method.name!r}: {kind} has {what} {getattr(step, what)!r}; write a tuple such as ("private",)'
            )
    for role in _named(method, step):
        if role is not None and role not in method.roles:
            raise FedekdError(
                f"method {method.name!r}: {kind} names the role {role!r}, which is not among its roles "
                f"{', '.join(sorted(method.roles)) or 'none'}"
            )
    split = getattr(step, "split", None)
    if split is not None and split not in SPLITS:
        raise FedekdError(f"method {method.name!r}: a step asks for the split {split!r}; there are {', '.join(SPLITS)}")
    if isinstance(step, Train) and step.optimizer not in (None, "adam", *MOMENTUM):
        raise FedekdError(
            f"method {method.name!r}: a step asks for the optimizer {step.optimizer!r}; there are adam, "
            f"{' and '.join(MOMENTUM)}"
        )
    for what, number, word in (("epochs", int, "a whole number"), ("lr", (int, float), "a number")):
        value = getattr(step, what, None)
        if value is not None and not (isinstance(value, number) and 0 <= value < float("inf")):
            raise FedekdError(f"method {method.name!r}: {kind} has {what}={value!r}; give {word} from 0 on")
    for function in _functions(step):
        if not callable(function):
            raise FedekdError(
                f"method {method.name!r}: {kind} has {return_checks.kind(function)} where a function belongs"
            )


def _named(method: Method, step: Step) -> list[str | None]:
    if isinstance(step, Train):
        if not step.roles or set(step.roles) & set(step.frozen):
            raise FedekdError(f"method {method.name!r}: a Train step needs roles that it does not freeze as well")
        return [*step.roles, *step.frozen]
    if isinstance(step, Remember):
        return list(step.roles)
    if isinstance(step, Copy):
        return [step.target, *([step.source] if isinstance(step.source, str) else [])]
    if step.refine and (step.target is None or step.refine.roles != (step.target,)):
        raise FedekdError(
            f"method {method.name!r}: the exchange {step.name!r} refines {' and '.join(step.refine.roles)}, but its "
            f"answer goes into {step.target or 'no model'}"
        )
    return [*step.roles, step.target, None if step.send else step.name]


def _functions(step: Step) -> list[Any]:
    if isinstance(step, Train):
        return [step.loss, *([step.part] if step.part else [])]
    if isinstance(step, Remember):
        return [step.compute]
    if isinstance(step, Copy):
        return [*([] if isinstance(step.source, str) else [step.source]), *([step.part] if step.part else [])]
    return [one for one in (step.combine, step.send, step.part) if one is not None]


def codes(step: Step) -> list[Callable[..., Any]]:
    """What a step's functions do, as far as it can be told apart: rounds may differ in nothing else."""
    inner = [step.refine.loss] if isinstance(step, Exchange) and step.refine else []
    return [getattr(one, "__code__", type(one)) for one in (*_functions(step), *inner)]


def check_exchanges(method: Method, rounds: Sequence[Sequence[Step]]) -> None:
    """Under one name, one thing travels: its last answer is what the next one starts from."""
    found: dict[str, Exchange] = {}
    for step in (step for steps in rounds for step in steps if isinstance(step, Exchange)):
        first = found.setdefault(step.name, step)
        for what in ("part", "into", "each"):
            if getattr(first, what) != getattr(step, what) or (first.send is None) != (step.send is None):
                raise FedekdError(
                    f"method {method.name!r} exchanges two things as {step.name!r} that differ in `{what}` or `send`; "
                    "give them two names"
                )


def check_public(job: Job) -> None:
    needs, federation = job.method.public, job.federation
    if needs and not len(federation.public):
        raise _needs_public(job.method)
    if needs == "labels" and not federation.public_labelled:
        raise FedekdError(f"method {job.method.name!r} needs public rows with labels, and these have none")


def _needs_public(method: Method) -> FedekdError:
    labels = " with labels" if method.public == "labels" else ""
    return FedekdError(
        f"method {method.name!r} needs public rows{labels}, which server and clients all hold: give a share to set "
        "aside, such as --public 0.1, or a file"
    )
