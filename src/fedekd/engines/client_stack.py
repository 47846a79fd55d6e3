"""Clients of one architecture as a stack: what they send and receive, what they answer, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedekd import parts
from fedekd.engines import return_checks
from fedekd.engines.forward import RowTable
from fedekd.engines.groups import MethodGroup, split
from fedekd.engines.member_rows import AtWork, MemberRows, home_of
from fedekd.engines.on_device import on_device
from fedekd.engines.stack import Stack, settle
from fedekd.exchange import answer_of
from fedekd.methods.base import Exchange
from fedekd.tasks import make_task
from fedekd.trees import moved, pick

Answered = tuple[int, np.ndarray, np.ndarray, Callable[[], tuple[Tensor, Tensor]]]
KEPT = {"pool", "row", "shared"}


def _plain(leaf: Any) -> Any:
    return leaf.state() if isinstance(leaf, MemberRows) else leaf


def _of_member(out: Tensor, y: Tensor, at: int, n: int) -> tuple[Tensor, Tensor]:
    return out[at, :n], y[at, :n]


class ClientStack(Stack):
    """Its members are known by their places in it; ``Stacked`` knows which clients of which job these are."""

    # --- who is at work ----------------------------------------------------------------------------------

    @contextmanager
    def at_work(self, here: Sequence[int], then: Sequence[int], roles: Sequence[str] | None = None) -> Iterator[None]:
        """Meanwhile these members alone do something, with these models if that is known; ``then`` come next."""
        if not self.brings:
            yield
            return
        try:
            for rows, who in self._rows_of(here, roles):
                rows.bring(who)
                self.brought.append(rows)
            for rows, who in self._rows_of(then, roles):
                rows.fetch_ahead(who)
            yield
        finally:
            for rows in self.brought:
                rows.leave()
            self.brought.clear()

    def _rows_of(self, here: Sequence[int], roles: Sequence[str] | None) -> Iterator[tuple[MemberRows, AtWork]]:
        """What is kept of members that take turns, all of it or some models, with the places of these in it."""
        weights = {role: self.weights[role] for role in (self.weights if roles is None else roles)}
        kept: list[tuple[Any, list[int], int]] = [(weights, list(here), len(self.members))]
        for group in self.groups if roles is None else ():
            places = group.places([i for i in here if i in group])
            kept += [(one.trees, places, one.rows) for one in (group.received, group.memory, group.gradients)]
        for tree, places, of in kept:
            found = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, MemberRows)]
            if found and places:
                who = AtWork(places, of, self.device)
                yield from ((rows, who) for rows in found)

    # --- exchange ----------------------------------------------------------------------------------------

    def uploads(self, index: int, step: Exchange, here: Sequence[int]) -> dict[str, Tensor]:
        """What these members send, [here, ...]."""
        if step.send is None:
            tied = self.forward.tied[step.name]  # a model travels under all its names
            names = parts.names(step.part, self.forward.plain[step.name])
            sent = {n: self.weights[step.name][tied.get(n, n)] for n in names}
            if self.all_stay(here):
                return {n: w.clone() for n, w in sent.items()}
            at = on_device(list(here), self.device)
            return {n: w[at] for n, w in sent.items()}
        made: dict[int, dict[str, Tensor]] = {}
        find = self.find(("step", index))

        def work(group: MethodGroup, indices: list[int]) -> None:
            found = self.over_split(
                group, indices, step, lambda m, batch: return_checks.made(m, step.name, find(m).send(batch))
            )
            made.update({i: pick(found, k) for k, i in enumerate(indices)})

        self.by_group(here, work)
        return {n: torch.stack([made[i][n] for i in here]) for n in made[here[0]]}

    def hand_out(self, step: Exchange, here: Sequence[int], answer: Any) -> None:
        """One answer to all of these members, or one for each of them."""
        group = next(g for g in self.groups if here[0] in g)
        single = step.each and not isinstance(answer, dict)  # trees, which may differ
        for place in range(len(here)) if single else range(1):
            self._check_fits(group, step, answer_of(answer, place, step.each))
        if single:
            answer = {n: torch.stack([one[n] for one in answer]) for n in answer[0]}
        self._receive(step, here, {n: t if step.each else t.expand(len(here), *t.shape) for n, t in answer.items()})

    def hand_out_one_of(
        self, step: Exchange, here: Sequence[int], answers: Sequence[dict[str, Tensor]], which: Sequence[int]
    ) -> None:
        """To each of these members one of several answers to all, such as its job's."""
        for i, k in dict(zip(which, here, strict=True)).items():
            self._check_fits(next(g for g in self.groups if k in g), step, answers[i])
        at = on_device(list(which), self.device)
        self._receive(step, here, {n: torch.stack([one[n] for one in answers])[at] for n in answers[0]})

    def _check_fits(self, group: MethodGroup, step: Exchange, answer: Any) -> None:
        role = step.target
        if role is not None:
            shapes = {n: self.weights[role][n].shape[1:] for n in self.forward.kept[role]}
            shapes |= {n: shapes[own] for n, own in self.forward.tied[role].items()}
            return_checks.fits(group.method, role, answer, shapes)

    def _receive(self, step: Exchange, here: Sequence[int], wide: dict[str, Tensor]) -> None:
        """``wide``: [here, ...]."""
        role, at = step.target, on_device(list(here), self.device)
        if role is not None:
            wide = {n: t for n, t in wide.items() if n not in self.forward.tied[role]}
            for n, t in wide.items():
                self.weights[role][n][at] = t
            if role not in self.method.reads_weights:
                return
            wide = self.forward.only_trainable(role, wide)
        self.put("received", {step.name: wide}, here)

    # --- answers -----------------------------------------------------------------------------------------

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """The members as they answer: after the method's ``personalise``, which is undone in the end."""
        weights = self.weights
        self.weights = {role: {n: w.clone() for n, w in tree.items()} for role, tree in weights.items()}
        count, trust = self.steps.clone(), self.trust_log.copy()
        known = [(group, group.memory, group.gradients) for group in self.groups]
        for group, memory, gradients in known:
            group.memory, group.gradients = memory.copy(), gradients.copy()
        self.personal = True
        try:
            for index, (step, again) in enumerate(return_checks.personal(self.method)):
                self.perform(("personalise", index), step, range(len(self.members)), again)
            settle(self.unsettled)
            yield
        finally:
            self.personal = False
            self.weights = weights
            self.steps.copy_(count)  # in place: graphs read it
            self.groups = [group for group, *_ in known]
            for group, memory, gradients in known:
                group.memory, group.gradients = memory, gradients
            self.trust_log.restore(trust)

    def answered(self, split: str) -> list[Answered]:
        """Of each member, row by row of a split: the errors of its answers, their losses, and outputs with targets.

        The latter stay on the device. The others are found there for many members at once: one by one they would take
        longer than the training. They are fetched when all of it has been asked for, not waited for in between.
        """
        asked: list[tuple[RowTable, Tensor, Tensor, Tensor, Tensor]] = []

        def work(group: MethodGroup, indices: list[int]) -> None:
            roles = self.forward.answering(group.method)
            pieces = [indices[start : start + self.limit] for start in range(0, len(indices), self.limit)]
            for here, then in zip(pieces, [*pieces[1:], [] if self.personal else self.next_round], strict=True):
                table = self.table(split, here)
                with self.at_work(here, then, roles):
                    out = self.forward.predictions(group, table, split)
                y = table.scale.targets(self.y[table.rows])
                wrong = make_task(self.task.name, table.scale.std.reshape(len(here), 1)).errors(out, y)
                loss = self.task.loss(out.flatten(0, 1), y.flatten()).view(y.shape).double()
                asked.append((table, wrong, loss, out, y))

        self.by_group(range(len(self.members)), work)
        found: list[Answered] = []
        for table, wrong, loss, out, y in asked:
            errors, losses = wrong.cpu().numpy(), loss.cpu().numpy()
            for at, (i, n) in enumerate(zip(table.indices, table.lengths, strict=True)):
                found.append((i, errors[at, :n], losses[at, :n], partial(_of_member, out, y, at, n)))
        return found

    # --- state -------------------------------------------------------------------------------------------

    def state_of(self, i: int) -> dict[str, Any]:
        """One member's state, for ``Client.restore``."""
        group = next(group for group in self.groups if i in group.indices)
        (place,) = group.places([i])
        models = {}
        for role, tree in self.weights.items():
            own = {name: tree[name][i] for name in self.forward.kept[role]}
            models[role] = own | {name: own[first] for name, first in self.forward.tied[role].items()}
        known = {name: getattr(group, name).one(place) for name in ("memory", "received", "gradients")}
        return {"models": models, **known, "steps": int(self.steps[i]), "round": self.round_number}

    def state(self) -> dict[str, Any]:
        groups = [[group.indices, group.state()] for group in self.groups]
        return pytree.tree_map(_plain, {"weights": self.weights, "steps": self.steps, "groups": groups})

    def restore(self, state: Mapping[str, Any]) -> None:
        saved_groups = [indices for indices, _ in state["groups"]]
        for group in [group for group in self.groups if group.indices not in saved_groups and group.varying]:
            split(self.groups, group)
        if [group.indices for group in self.groups] != saved_groups:
            raise ValueError("the checkpoint's clients are grouped in another way")
        for group, (_, saved) in zip(self.groups, state["groups"], strict=True):
            group.restore(self._restored(saved))
        self.weights, self.steps = self._restored(state["weights"]), moved(state["steps"], self.device)

    def _restored(self, saved: Any) -> Any:
        if isinstance(saved, dict) and saved.keys() == KEPT:
            home = home_of(saved["pool"].numel() * saved["pool"].element_size(), self.device)
            rows = MemberRows(saved["pool"][:0], [], home, self.device)
            rows.restore(saved)
            return rows
        if isinstance(saved, dict):
            return {name: self._restored(value) for name, value in saved.items()}
        return moved(saved, self.device)
