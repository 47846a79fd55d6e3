"""What the federation's model gave this site after each round, and which round's model it ends with.

A site has the freedom that training alone has: the model of the last round, or of an earlier one that its validation
rows clearly prefer. Nothing of it leaves the site, and the federation goes on from the last round as ever.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed
from fedekd.runs import transfer
from fedekd.runs.history import History
from fedekd.runs.records import Record
from fedekd.runs.transfer import Option
from fedekd.trees import copied, moved

log = logging.getLogger("fedekd.site")


class ChosenRound:
    def __init__(self) -> None:
        self.history, self.rounds = History.fresh(1), list[int]()
        """``rounds``: which of the federation's rounds were measured; a site may have been absent from some."""
        self.best: Any = None
        """The client's state in its best round so far, as it answered."""
        self.stopped = False

    def measure(self, client: Client, rounds: int) -> None:
        """After so many rounds. What fails here costs the site its choice, not its visit."""
        if self.stopped or not client.models or rounds <= max(self.rounds, default=0):
            return
        client.round = rounds
        try:
            with client.personalised():
                (better,) = self.history.add(len(self.rounds) + 1, [[client.measure()]], client.job.training)
                self.rounds.append(rounds)
                if better:
                    self.best = copied(client.state())
        except Failed:
            raise
        except Exception as error:
            self.stopped = True
            log.warning(
                "measuring round %d failed, so that the last round's model is taken: %s",
                *(rounds, error),
                exc_info=not isinstance(error, FedekdError),
            )

    def option(self, label: str, client: Client) -> Option | None:
        """The round that it ends with; None where nothing was measured."""
        if self.stopped or not self.rounds:
            return None
        sizes = {f"n_{split}": len(client.rows[split]) for split in ("val", "test")}
        row = {**self.history.clients(0, client.job)[0], **sizes}
        record = {
            "label": label,
            "metric": client.task.metric,
            "params": {"rounds": len(self.rounds)},
            "clients": [row],
        }
        found = transfer.option(cast("Record", record), 0)
        return replace(found, round=self.rounds[found.round - 1])

    @contextmanager
    def taken(self, client: Client, option: Option | None) -> Iterator[None]:
        """The client as it answered in that round; afterwards it is what it was."""
        with client.personalised():
            if option is None or option.round == self.rounds[-1]:
                yield
                return
            before = copied(client.state())
            client.restore(moved(self.best, client.device))
            try:
                yield
            finally:
                client.restore(moved(before, client.device))

    def state(self) -> dict[str, Any]:
        kept = {"history": copy.deepcopy(vars(self.history)), "rounds": self.rounds, "best": self.best}
        return {**kept, "stopped": self.stopped}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """A version that measured no rounds has saved none: its federation ends with the last round's model."""
        if state is None:
            self.stopped = True
            return
        self.history, self.rounds = History(**copy.deepcopy(state["history"])), list(state["rounds"])
        self.best, self.stopped = state["best"], state["stopped"]
