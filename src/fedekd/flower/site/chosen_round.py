"""What a model gave this site after each round, and which round's model it ends with.

The federation's model and those trained alone have the same freedom: the last round, or an earlier one that validation
rows clearly prefer. Nothing of it leaves the site, and training goes on from the last round as ever.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed
from fedekd.runs.choosing import Option, last_round, option
from fedekd.runs.history import History
from fedekd.runs.records import Record
from fedekd.trees import copied, moved

log = logging.getLogger("fedekd.site")


class ChosenRound:
    def __init__(self) -> None:
        self.history = History.fresh(1)
        """Of the rounds that were measured: a site may have been absent from some."""
        self.best: Any = None
        """The client's state in its best round so far, as it answered."""
        self.stopped = False

    def add(self, client: Client, rounds: int) -> None:
        """Measure it after so many rounds."""
        client.round = rounds
        with client.personalised():
            (better,) = self.history.add(rounds, [[client.measure()]], client.job.training)
            if better:
                self.best = copied(client.state())

    def measure(self, client: Client, rounds: int) -> None:
        """The same unless it was done. What fails here costs the site its choice, not its visit."""
        if self.stopped or not client.models or rounds in self.history.measured or not rounds:
            return
        try:
            self.add(client, rounds)
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
        return self.options(label, client)[0] if self.history.measured and not self.stopped else None

    def options(self, label: str, client: Client) -> tuple[Option, Option]:
        """The round that it ends with, and the last."""
        sizes = {f"n_{split}": len(client.rows[split]) for split in ("val", "test")}
        row = {**self.history.clients(0, client.job)[0], **sizes}
        record = {
            "label": label,
            "metric": client.task.metric,
            "params": {"rounds": self.history.measured[-1]},
            "clients": [row],
        }
        chosen, last = (take(cast("Record", record), 0) for take in (option, last_round))
        return chosen, last

    @contextmanager
    def taken(self, client: Client, option: Option) -> Iterator[None]:
        """The client as it answered in that round; afterwards it is what it was."""
        with client.personalised():
            if self.stopped or self.best is None or option.round == self.history.measured[-1]:
                yield
                return
            before = copied(client.state())
            client.restore(moved(self.best, client.device))
            try:
                yield
            finally:
                client.restore(moved(before, client.device))

    def state(self) -> dict[str, Any]:
        return {"history": copy.deepcopy(vars(self.history)), "best": self.best, "stopped": self.stopped}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """A version that measured no rounds has saved none: its federation ends with the last round's model."""
        if state is None:
            self.stopped = True
            return
        self.history = History(**copy.deepcopy(state["history"]))
        self.best, self.stopped = state["best"], state["stopped"]
