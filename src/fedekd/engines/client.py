"""One client: its rows, its models and what it remembers. The serial engine has several, a real site is one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedekd import models, parts, rng
from fedekd.engines import return_checks
from fedekd.engines.batch import label_counts, make_batch
from fedekd.engines.client_models import EVALUATION_BATCH, ClientModels
from fedekd.engines.cuda_graphs import WORTH_CAPTURING, GraphedStep
from fedekd.engines.job import Job, Measured, Rows, TrustLog, precision
from fedekd.engines.layers import TrainingPass, dropout_key, drops, step_key, training_pass
from fedekd.engines.optimizer import FusedOptimizer
from fedekd.engines.schedule import schedule
from fedekd.errors import FedekdError
from fedekd.exchange import Message, exchanges
from fedekd.federation import Split
from fedekd.methods.base import ClientInit, Copy, Exchange, Remember, Train
from fedekd.methods.batch import Batch, gradient_alone
from fedekd.models import trainable
from fedekd.trees import map_tree, moved


class Client(ClientModels):
    """What one client does in a round. ``state`` and ``restore`` carry it over an interruption to the bit.

    ``position`` says which of the federation's clients it is, ``number`` what it is called in the random streams:
    a site holds a federation of itself alone, yet must draw what it would draw in a simulation of all.
    """

    def __init__(
        self,
        job: Job,
        position: int,
        number: int | None = None,
        rows: Rows | None = None,
        own: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(job, position if number is None else number, rows, own)
        self.name = job.federation.names[position]
        self.rows = self._rows(job.federation.clients[position])
        self.counts = label_counts(self.task.name, self.data.y[self.rows["train"]], job.federation.dataset.outputs)
        self.received: dict[str, dict[str, Tensor]] = {}
        for name, step in exchanges(self.method, job.training.rounds).items():
            if step.target in self.method.reads_weights:
                self.received[name] = self.weights(step.target, step.part)
        self.memory = self._begin()
        self.gradients: dict[str, dict[str, Tensor]] = {}
        self.teachers: Tensor | None = None
        self.steps = 0
        self._steps_known: tuple[int, Tensor] | None = None
        self.graphs = self.device.type == "cuda"
        """Whether a training step is captured as a CUDA graph."""
        self.round = 0
        """How many rounds the federation has done, for the batches of ``personalise``."""
        self.trust = TrustLog(1, self.device)
        self.personal = False
        """Whether it is as it answers, after ``personalise``."""

    def _rows(self, split: Split) -> dict[str, Tensor]:
        every = {name: getattr(split, name) for name in ("train", "val", "test")}
        every["public"] = self.job.federation.public
        return {name: torch.from_numpy(rows).to(self.device) for name, rows in every.items()}

    def _begin(self) -> dict[str, Any]:
        features: dict[str, int] = {}
        if self.method.needs_features:
            bodies = {role: self.models[role] for role in self.method.roles if role not in self.method.heads}
            features = {role: models.last_linear(module).in_features for role, module in bodies.items()}
        weights = {role: self.weights(role) for role in self.models}
        start = ClientInit(weights, features, self.job.seed, self.data.y[self.rows["train"]])
        begun = self.method.begin(start)
        if not isinstance(begun, Mapping):
            raise FedekdError(f"method {self.method.name!r}: begin() gives {type(begun).__name__}; return a dict")
        return {key: map_tree(self._as_tensor, value) for key, value in begun.items()}

    def _as_tensor(self, value: Any) -> Tensor:
        """A client's memory: numbers count as tensors in every engine."""
        return torch.as_tensor(value).detach().clone().to(self.device)

    # --- the steps of a round ----------------------------------------------------------------------------

    def perform(self, step: Train | Remember | Copy, round: int, again: int = 0) -> None:
        """``again``: how often the step's first role was trained before in this round."""
        with precision(self.job.training.precision, self.device):
            if isinstance(step, Train):
                self.train(step, round, again)
            elif isinstance(step, Remember):
                self.remember(step, round)
            else:
                self.copy(step, round)

    def train(self, step: Train, round: int, again: int = 0) -> None:
        training, rows = self.job.training.of(step).at(self._round(round)), self.rows[step.split]
        root = self.method.root(step.roles[0])
        plan = schedule(
            self.job.seed,
            self.number,
            root,
            round,
            split=step.split,
            again=again,
            n=len(rows),
            epochs=training.epochs,
            batch_size=training.batch_size,
            draws=self.method.drawn,
            augment=training.augments(step.split),
            mixed=step.mixed,
        )
        self.steps = plan.steps
        augmented = plan.moves.size > 0
        moves = torch.from_numpy(plan.moves).to(self.device).flatten(0, 1) if augmented else None
        partners = rows[torch.from_numpy(plan.partners).to(self.device).flatten()] if step.mixed else None
        taught, weights = self._taught(step, rows, moves, partners), self._readable_weights()
        trained = {role: self._part(role, step) for role in step.roles}
        return_checks.to_train(self.method, step, trained)
        every = [w for tree in trained.values() for w in tree.values()]
        sums = {role: {n: torch.zeros_like(w) for n, w in tree.items()} for role, tree in trained.items()}
        optimizer, key = FusedOptimizer(training, every), self._dropout_key(root, round, again)

        def advance(here: Tensor, lessons: Tensor, draws: Tensor, key: Tensor | None) -> None:
            """One batch, of these places in the split; ``lessons``: their places in what is ``taught`` and altered."""
            x = self._inputs(rows[here], *(t if t is None else t[lessons] for t in (moves, partners)))
            out = {role: (o[lessons], f[lessons]) for role, (o, f) in taught.items()}
            with training_pass(TrainingPass(key)):
                out = self._named(step, self._through(step.roles, x, out))
                batch = self._batch(rows[here], here, out, weights, draws, training.lr, x)
                loss, extra = return_checks.loss_of(self.method, step, batch)
            optimizer.zero_grad()
            loss.backward()
            if step.gradients:
                for role, tree in trained.items():
                    for n, w in tree.items():
                        sums[role][n] += w.grad if w.grad is not None else 0
            optimizer.step()
            if "trust" in extra:
                self.trust.add(extra["trust"])

        with self._training(step, trained), self._seeded(root, round, again):
            walk = GraphedStep(advance, self.device) if self.graphs and plan.steps > WORTH_CAPTURING else advance
            for epoch, (order, uniform) in enumerate(zip(plan.order, plan.uniform, strict=True) if plan.steps else ()):
                positions = torch.from_numpy(order).to(self.device).split(training.batch_size)
                numbers = torch.from_numpy(uniform).to(self.device).split(training.batch_size)
                for k, (here, draws) in enumerate(zip(positions, numbers, strict=True)):
                    now = None if key is None else step_key(key, epoch * len(positions) + k)
                    walk(here, here + epoch * len(rows) if augmented else here, draws, now)
            optimizer.zero_grad()
        if isinstance(walk, GraphedStep):
            self.graphs = not walk.failed
        if step.gradients:
            means = {r: {n: g / max(1, plan.steps) for n, g in tree.items()} for r, tree in sums.items()}
            self.gradients = {**self.gradients, **means}
        if not all(bool(torch.isfinite(w).all()) for w in every):
            raise FedekdError(f"{self.method.name}: client {self.name} diverged in round {round + 1}; lower --lr")

    def _taught(
        self, step: Train, rows: Tensor, moves: Tensor | None, partners: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """What frozen roles give for all rows; where rows are altered, for those of one epoch after another."""
        if moves is None:
            return {role: self.outputs(role, rows) for role in self._still(step)}
        drawn = moves.split(len(rows))
        others = [None] * len(drawn) if partners is None else partners.split(len(rows))
        altered = list(zip(drawn, others, strict=True))
        found = {role: [self.outputs(role, rows, *own) for own in altered] for role in self._still(step)}
        return {r: (torch.cat([o for o, _ in every]), torch.cat([f for _, f in every])) for r, every in found.items()}

    def _dropout_key(self, role: str, round: int, again: int) -> Tensor | None:
        if not any(drops(module) for module in self.models.values()):
            return None
        key = dropout_key(self.job.seed, role, self.number, round, again)
        return torch.tensor(key, dtype=torch.int32, device=self.device)

    def _round(self, round: int) -> int | None:
        """The round whose learning rate is in force: none where the client makes itself ready to answer."""
        return None if self.personal else round

    def _part(self, role: str, step: Train) -> dict[str, nn.Parameter]:
        module = self.models[role]
        wanted = set(parts.names(step.part, module))
        return {n: w for n, w in trainable(module).items() if n in wanted}

    def _still(self, step: Train) -> list[str]:
        """The roles whose outputs a training step takes as they are: frozen ones, and what lies under its heads."""
        below = [self.method.heads[role] for role in step.roles if role in self.method.heads]
        return list(dict.fromkeys([*step.frozen, *(role for role in below if role not in step.roles)]))

    @staticmethod
    def _named(step: Train, out: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        return {role: out[role] for role in (*step.roles, *step.frozen)}

    @contextmanager
    def _training(self, step: Train, trained: Mapping[str, Mapping[str, Tensor]]) -> Iterator[None]:
        """Modules in training mode, and no gradient for weights that are left alone."""
        still = [w for role in step.roles for n, w in trainable(self.models[role]).items() if n not in trained[role]]
        for role, module in self.models.items():
            module.train(role in step.roles)
        for w in still:
            w.requires_grad_(False)
        try:
            yield
        finally:
            for w in still:
                w.requires_grad_()

    @contextmanager
    def _seeded(self, role: str, round: int, again: int) -> Iterator[None]:
        """torch's own generators, which random layers draw from, other than ``layers.OwnDropout``."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed = rng.integer(self.job.seed, "dropout", role, self.number, round, *((again,) if again else ()))
            torch.default_generator.manual_seed(seed)
            if self.device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield

    @torch.no_grad()
    def remember(self, step: Remember, round: int) -> None:
        self.memory = {
            **self.memory,
            **return_checks.remembered(self.method, step, self._whole(step.split, step.roles, round)),
        }

    @torch.no_grad()
    def copy(self, step: Copy, round: int) -> None:
        if isinstance(step.source, str):
            found: Message = self.models[step.source].state_dict()
        else:
            found = step.source(self._whole(None, (), round))
        target = self.models[step.target]
        state, names = target.state_dict(), parts.names(step.part, target)
        self._load(step.target, return_checks.copied(self.method, step, found, {n: state[n].shape for n in names}))

    @torch.no_grad()
    def upload(self, step: Exchange, round: int) -> dict[str, Tensor]:
        """What the client sends in this exchange."""
        if step.send is None:
            state = self.models[step.name].state_dict()
            return {name: state[name].clone() for name in parts.names(step.part, self.models[step.name])}
        with precision(self.job.training.precision, self.device):
            return return_checks.made(self.method, step.name, step.send(self._whole(step.split, step.roles, round)))

    def receive(self, step: Exchange, answer: Message) -> None:
        role = step.target
        if role is not None:
            self._load(role, answer)
        if role is None or role in self.method.reads_weights:
            weights = answer if role is None else {n: answer[n] for n in trainable(self.models[role]) if n in answer}
            self.received[step.name] = {n: t.detach().clone() for n, t in weights.items()}

    # --- what the method sees -----------------------------------------------------------------------------

    def batch(self, at: Tensor, out: dict[str, tuple[Tensor, Tensor]]) -> Batch:
        """These rows and what the models make of them, outside of training."""
        uniform = torch.from_numpy(
            rng.stream(self.job.seed, "aside", self.number).random((len(at), self.method.uniforms))
        )
        here = torch.arange(len(at), device=self.device)
        draws = uniform.float().to(self.device)
        return self._batch(at, here, out, self._readable_weights(), draws, self.job.training.lr)

    def _whole(self, split: str | None, roles: Iterable[str], round: int) -> Batch:
        """A whole split, or no rows at all."""
        rows = self.rows[split] if split else self.rows["train"][:0]
        out = {role: self.outputs(role, rows) for role in roles}
        draws = rng.stream(self.job.seed, "remember", self.number, round).random((len(rows), self.method.uniforms))
        uniform = torch.from_numpy(draws).float().to(self.device)
        here = torch.arange(len(rows), device=self.device)
        lr = self.job.training.at(self._round(round)).lr
        return self._batch(rows, here, out, self._readable_weights(), uniform, lr)

    def _batch(
        self,
        at: Tensor,
        here: Tensor,
        out: Mapping[str, tuple[Tensor, Tensor]],
        weights: Mapping[str, Any],
        uniform: Tensor,
        lr: float,
        x: Tensor | None = None,
        blind: bool = False,
    ) -> Batch:
        """``at`` are rows of the dataset, ``here`` their places in the split; ``blind``: whose targets nobody knows."""
        y = self.data.y[at]
        seen = {
            "x": x,
            "y": torch.zeros_like(y) if blind else y,
            "outputs": {role: o for role, (o, _) in out.items()},
            "features": {role: f for role, (_, f) in out.items()} if self.method.needs_features else {},
            "weights": weights,
            "received": self.received,
            "memory": self.memory,
            "gradients": self.gradients,
            "uniform": uniform,
            "rows": here,
            "groups": self.data.groups_of(at, here),
            "counts": self.counts,
            "steps": self._steps(),
            "teachers": None if self.teachers is None else self.teachers[:, here],
        }
        return self._seen(seen, lr)

    def _steps(self) -> Tensor:
        """On the device; made once, since a graph that is being captured cannot bring it there."""
        if self._steps_known is None or self._steps_known[0] != self.steps:
            self._steps_known = self.steps, torch.tensor(self.steps, device=self.device)
        return self._steps_known[1]

    def _seen(self, seen: Mapping[str, Any], lr: float | Tensor) -> Batch:
        return replace(make_batch(self.method, self.task, lr, seen, self._applied), differentiate=gradient_alone)

    # --- answers -----------------------------------------------------------------------------------------

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """The client as it answers: after the method's ``personalise``, which is undone in the end."""
        steps = [] if self.personal else return_checks.personal(self.method)
        if not steps:
            yield
            return
        before, trust = copy.deepcopy(self.state()), self.trust.copy()
        self.personal = True
        try:
            for step, again in steps:
                self.perform(step, self.round, again)
            yield
        finally:
            self.personal = False
            self.restore(before)
            self.trust.restore(trust)

    @torch.no_grad()
    def predictions(self, rows: Tensor, split: str = "") -> Tensor:
        """The method's outputs on these rows, with the models as they are."""
        found, scale = [], self.data.scale
        for module in self.models.values():
            module.eval()
        weights = self._readable_weights()
        for here in torch.arange(len(rows), device=self.device).split(EVALUATION_BATCH):
            x = scale.inputs(self.data.x[rows[here]])
            out = self._through([role for role in self.method.answers if role in self.models], x, {})
            uniform = torch.zeros(len(here), self.method.uniforms, device=self.device)
            lr = self.job.training.lr
            batch = self._batch(rows[here], here, out, weights, uniform, lr, x, blind=True)
            found.append(self.method.predict(replace(batch, split=split)))
        return torch.cat(found)

    def score(self, split: str = "test") -> float:
        """The task's metric on one split."""
        return self.task.score(*self._answers(split))

    def errors(self, split: str = "test") -> Tensor:
        """Its error on each sample of one split: see ``Task.errors``."""
        return self.task.errors(*self._answers(split))

    def answers(self, split: str = "test") -> Tensor:
        """Its target and prediction for each sample of one split: see ``Task.answers``."""
        return self.task.answers(*self._answers(split))

    def measure(self, training_rows: int = 0) -> Measured:
        """``training_rows``: how many of them, at most, to tell the loss of; the same in every round."""
        with self.personalised():
            found = Measured.of(self.task, self._answers("test"), self._answers("val"))
            if not training_rows:
                return found
            order = rng.stream(self.job.seed, "training loss", self.number).permutation(len(self.rows["train"]))
            some = torch.from_numpy(order[:training_rows]).to(self.device)
            loss = self.task.loss(*self._answers("train", self.rows["train"][some]))
            return replace(found, train_loss=float(loss.double().mean()))

    def _answers(self, split: str, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = self.rows[split] if rows is None else rows
        with self.personalised(), precision(self.job.training.precision, self.device):
            return self.predictions(rows, split), self.data.y[rows]

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "models": {role: module.state_dict() for role, module in self.models.items()},
            "memory": self.memory,
            "received": self.received,
            "gradients": self.gradients,
            "steps": self.steps,
            "round": self.round,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for role, module in self.models.items():
            module.load_state_dict(state["models"][role])
        self.memory, self.received, self.gradients = (
            moved(state[key], self.device) for key in ("memory", "received", "gradients")
        )
        self.steps, self.round = state["steps"], state["round"]
