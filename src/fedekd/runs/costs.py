"""What methods would exchange with given models and data, without training anything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedekd import methods
from fedekd.data import federate, find_public
from fedekd.engines.rehearsal import ExchangeCost, rehearse
from fedekd.errors import FedekdError
from fedekd.runs import plan
from fedekd.settings import Settings

ROUNDS = 3


@dataclass(frozen=True)
class Costs:
    """By method that fits the task: what one client exchanges in a later round."""

    dataset: str
    later: dict[str, list[ExchangeCost]] = field(default_factory=dict)
    sooner: list[str] = field(default_factory=list)
    """Methods that exchange less in their first round."""
    refused: dict[str, str] = field(default_factory=dict)
    """Methods that these models or data do not suit, and why."""


def costs(settings: Settings) -> Costs:
    dataset = plan.load(settings)
    public = find_public(settings.public, dataset, target=settings.target, clients_from=settings.clients_from)
    kind = "iid" if dataset.sites is None else "sites"  # what is sent does not depend on how rows are dealt out
    federation = federate(dataset, clients=2, partition=kind, public=public)
    found = Costs(dataset.name)
    for name in methods.groups()["all"]:
        method = methods.get(name)
        if dataset.task not in method.tasks:
            continue
        try:
            first, *_, last = rehearse(plan.make_job(replace(settings, rounds=ROUNDS), federation, method, seed=0))
        except FedekdError as error:
            found.refused[name] = str(error)
            continue
        found.later[name] = last
        if sum(cost.up for cost in first) < sum(cost.up for cost in last):
            found.sooner.append(name)
    return found
