"""What the site could do by itself, trained beside the federation, a share in every visit.

Plain Local; Local with smoothed targets; and the method's isolated twin, a federation of this one site. None of it
leaves the site, so that none of it gets noise under ``[dp]``: who stays alone needs none.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedekd import methods
from fedekd.engines.client import Client
from fedekd.engines.job import Job, Rows
from fedekd.engines.serial import Serial
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed
from fedekd.flower.site.chosen_round import ChosenRound
from fedekd.methods.base import Method
from fedekd.runs.alone import ALONE
from fedekd.runs.choosing import Option
from fedekd.runs.plan import SMOOTH, has_twin
from fedekd.trees import moved

log = logging.getLogger("fedekd.site")
LOCAL = "local"


class AloneMenu:
    """One after another, so that there is one such model at a time on the device; between visits they are saved."""

    def __init__(
        self,
        job: Job,
        label: str,
        number: int,
        rows: Rows | None = None,
        *,
        whole: bool = True,
        given: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``label``: of the method; ``number``: the site's, in the random streams; ``whole``: else plain Local alone.

        ``given``: weights that the site has trained before, in place of plain Local.
        """
        self.job = replace(job, training=replace(job.training, participation=1.0))
        self.number, self.rows, self.given, self.twin = number, rows or Rows.of(job), given, f"{label}{ALONE}"
        self.methods: dict[str, Method] = {LOCAL: methods.get(LOCAL)}
        if whole:
            self.methods |= {name: methods.get(name) for name in SMOOTH}
            if has_twin(job.method, job.training.rounds):
                self.methods[self.twin] = methods.twin(job.method, "alone")
        self.kept: dict[str, dict[str, Any]] = {}
        if given is not None:
            self._open(LOCAL)  # weights that do not fit are found when the site joins

    def train(self, rounds: int) -> None:
        """Up to so many rounds in all."""
        for label in self.methods:
            before = self.kept.get(label)
            if before is None or (before["engine"]["round"] < rounds and not before["stopped"]):
                self._train(label, rounds)

    def _train(self, label: str, rounds: int) -> None:
        """What fails stays as it was, and costs the site no visit: the federation does not depend on it."""
        engine, measured = self._open(label)
        try:
            while engine.round_number < rounds:
                if label == LOCAL and self.given is not None:
                    engine.clients.after(engine.round_number + 1)
                else:
                    engine.round()
                measured.add(engine.clients[0], engine.round_number)
                self._keep(label, engine, measured)
        except Failed:
            raise
        except Exception as error:
            if label not in self.kept:
                self._keep(label, Serial(engine.job, first=self.number, rows=self.rows), ChosenRound())
            self.kept[label]["stopped"] = True
            log.warning(
                "training %s alone failed and ends here: %s",
                *(label, error),
                exc_info=not isinstance(error, FedekdError),
            )

    def _open(self, label: str) -> tuple[Serial, ChosenRound]:
        job = replace(self.job, method=self.methods[label])
        engine, measured = Serial(job, first=self.number, rows=self.rows), ChosenRound()
        if label == LOCAL and self.given is not None:
            engine.clients[0].models["private"].load_state_dict(self.given)
        if kept := self.kept.get(label):
            engine.restore(kept["engine"])
            measured.restore(kept["rounds"])
        return engine, measured

    def _keep(self, label: str, engine: Serial, measured: ChosenRound) -> None:
        state = copy.deepcopy(moved(engine.state(), torch.device("cpu")))
        self.kept[label] = {"engine": state, "rounds": measured.state(), "stopped": False}

    def state(self) -> dict[str, Any]:
        return self.kept

    def restore(self, state: Mapping[str, Any]) -> None:
        """What is not there, as after another setting or an older version, is trained from its beginning."""
        self.kept = {label: state[label] for label in self.methods if "rounds" in state.get(label, {})}

    # --- in the end ---------------------------------------------------------------------------------------

    def local(self) -> Client:
        """Plain Local after its last round."""
        return self._open(LOCAL)[0].clients[0]

    @contextmanager
    def taken(self, option: Option) -> Iterator[Client]:
        """One of the results, as it answered in its round."""
        engine, measured = self._open(option.label)
        with measured.taken(engine.clients[0], option):
            yield engine.clients[0]

    def results(self) -> dict[str, tuple[Option, Option]]:
        """By label, plain Local first: at the round that validation rows prefer, and at the last."""
        found = {}
        for label, kept in self.kept.items():
            if label == LOCAL or not kept["stopped"]:
                engine, measured = self._open(label)
                if not measured.history.measured:
                    measured.add(engine.clients[0], 1)
                chosen, last = measured.options(label, engine.clients[0])
                found[label] = (last if label == LOCAL and self.given is not None else chosen, last)
        return found
