"""One client: its rows, its models and what it remembers. The serial engine has several, a real site is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedekd import models, rng
from fedekd.engines.job import Job, Scale, TrustLog, make_optimizer, pick_device, precision
from fedekd.engines.schedule import schedule
from fedekd.errors import FedekdError
from fedekd.exchange import Message, shared_roles
from fedekd.methods.base import Batch, Beginning, Remember, Train

EVALUATION_BATCH = 256
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Rows:
    """A federation's samples on the device, which its clients share in a simulation."""

    x: Tensor
    y: Tensor
    scale: Scale

    @classmethod
    def of(cls, job: Job) -> Rows:
        device, dataset = pick_device(job.training.device), job.federation.dataset
        x, y = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (dataset.x, dataset.y))
        scale = Scale.of(job.federation, device)
        return cls(x, scale.targets(y), scale)


class Client:
    """What one client does in a round. ``state`` and ``restore`` carry it over an interruption to the bit.

    ``position`` says which of the federation's clients it is, ``number`` what it is called in the random streams:
    a site holds a federation of itself alone, yet must draw what it would draw in a simulation of all.
    """

    def __init__(self, job: Job, position: int, number: int | None = None, rows: Rows | None = None) -> None:
        self.job, self.method, self.task = job, job.method, job.task
        self.name, self.number = job.federation.names[position], position if number is None else number
        self.device = pick_device(job.training.device)
        self.data = rows or Rows.of(job)
        split = job.federation.clients[position]
        self.rows = {name: torch.from_numpy(getattr(split, name)).to(self.device) for name in SPLITS}
        self.models = {role: self._build(role) for role in self.method.roles}
        self.received = {role: self.weights(role) for role in shared_roles(self.method, job.training.rounds)}
        self.memory = self._begin()
        self.trust = TrustLog(1, self.device)

    def _build(self, role: str) -> nn.Module:
        dataset = self.job.federation.dataset
        make, shape = self.job.factory(role), dataset.x.shape[1:]
        module = models.build(role, make, shape, dataset.outputs, self.job.seed, self.number)
        if self.data.x.dim() == 4:
            return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return module.to(self.device)

    def _begin(self) -> dict[str, Any]:
        features: dict[str, int] = {}
        if self.method.needs_features:
            one = self.rows["train"][:1]
            features = {role: self.outputs(role, one)[1].shape[-1] for role in self.method.roles}
        weights = {role: self.weights(role) for role in self.models}
        memory = self.method.begin(Beginning(weights, features, self.job.seed))
        return {key: moved(value, self.device) for key, value in memory.items()}

    # --- the steps of a round ----------------------------------------------------------------------------

    def train(self, step: Train, round: int) -> None:
        with precision(self.job.training.precision, self.device):
            self._train(step, round)

    def _train(self, step: Train, round: int) -> None:
        training, rows = self.job.training, self.rows["train"]
        plan = schedule(
            self.job.seed, self.number, step.roles[0], round,
            n=len(rows), epochs=training.epochs, batch_size=training.batch_size, draws=self.method.draws,
        )  # fmt: skip
        taught = {role: self.outputs(role, rows) for role in step.frozen}
        weights: dict[str, Any] = {role: trainable(self.models[role]) for role in self.method.anchors}
        trained = [w for role in step.roles for w in trainable(self.models[role]).values()]
        optimizer = make_optimizer(training, trained)
        for role in step.roles:
            self.models[role].train()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed = rng.integer(self.job.seed, "dropout", step.roles[0], self.number, round)
            torch.default_generator.manual_seed(seed)
            if self.device.type == "cuda":
                torch.cuda.manual_seed(seed)
            for order, uniform in zip(plan.order, plan.uniform, strict=True):
                positions = torch.from_numpy(order).to(self.device).split(training.batch_size)
                numbers = torch.from_numpy(uniform).to(self.device).split(training.batch_size)
                for here, draws in zip(positions, numbers, strict=True):
                    at = rows[here]
                    x = self.data.scale.inputs(self.data.x[at])
                    out = {role: self._forward(self.models[role], x) for role in step.roles}
                    out |= {role: (o[here], f[here]) for role, (o, f) in taught.items()}
                    result = step.loss(self._batch(at, out, weights, draws))
                    loss, extra = result if isinstance(result, tuple) else (result, {})
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if "trust" in extra:
                        self.trust.add(extra["trust"])
        if not all(bool(torch.isfinite(w).all()) for w in trained):
            raise FedekdError(f"{self.method.name}: client {self.name} diverged in round {round + 1}; lower --lr")

    def remember(self, step: Remember, round: int) -> None:
        rows = self.rows[step.split] if step.split else self.rows["train"][:0]
        with precision(self.job.training.precision, self.device), torch.no_grad():
            out = {role: self.outputs(role, rows) for role in step.roles}
            weights: dict[str, Any] = {role: trainable(self.models[role]) for role in self.method.anchors}
            draws = rng.stream(self.job.seed, "remember", self.number, round).random((len(rows), self.method.draws))
            uniform = torch.from_numpy(draws).float().to(self.device)
            self.memory |= step.compute(self._batch(rows, out, weights, uniform))

    def message(self, role: str) -> Message:
        """A role's model as it goes to the door: its full state, weights and buffers."""
        return self.models[role].state_dict()

    def receive(self, role: str, message: Message) -> None:
        self.models[role].load_state_dict(message)
        self.received[role] = {name: message[name] for name in self.received[role]}

    # --- outputs -----------------------------------------------------------------------------------------

    def batch(self, at: Tensor, out: dict[str, tuple[Tensor, Tensor]]) -> Batch:
        """These rows and what the models make of them, outside of training."""
        uniform = torch.from_numpy(rng.stream(self.job.seed, "aside", self.number).random((len(at), self.method.draws)))
        return self._batch(at, out, {}, uniform.float().to(self.device))

    def _batch(self, at: Tensor, out: dict[str, tuple[Tensor, Tensor]], weights: Any, uniform: Tensor) -> Batch:
        outputs = {role: o for role, (o, _) in out.items()}
        features = {role: f for role, (_, f) in out.items()}
        return Batch(self.task, self.data.y[at], outputs, features, weights, self.received, self.memory, uniform)

    def _forward(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the features if the method asked for them (else the outputs again)."""
        bf16 = self.job.training.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            if not self.method.needs_features:
                output = self.task.read(module(x))
                return output, output
            caught: list[Tensor] = []
            hook = models.last_linear(module).register_forward_pre_hook(lambda _, args: caught.append(args[0]))
            try:
                output = self.task.read(module(x))
            finally:
                hook.remove()
            return output, caught[-1].float()

    @torch.no_grad()
    def outputs(self, role: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A frozen model's outputs and features on whole splits."""
        module, scale = self.models[role].eval(), self.data.scale
        pieces = [self._forward(module, scale.inputs(self.data.x[part])) for part in rows.split(EVALUATION_BATCH)]
        return torch.cat([o for o, _ in pieces]), torch.cat([f for _, f in pieces])

    def score(self, split: str = "test") -> float:
        """The task's metric on one split."""
        return self.task.score(*self._answers(split))

    def errors(self, split: str = "test") -> Tensor:
        """What it gets wrong, sample by sample of one split."""
        return self.task.errors(*self._answers(split))

    def _answers(self, split: str) -> tuple[Tensor, Tensor]:
        rows = self.rows[split]
        with precision(self.job.training.precision, self.device):
            output = self.method.predict(self.data.y[self.rows["train"]], len(rows))
            return self.outputs("private", rows)[0] if output is None else output, self.data.y[rows]

    # --- interruption ------------------------------------------------------------------------------------

    def weights(self, role: str) -> dict[str, Tensor]:
        """A copy of a role's trainable weights."""
        return {name: w.detach().clone() for name, w in trainable(self.models[role]).items()}

    def state(self) -> dict[str, Any]:
        return {
            "models": {role: module.state_dict() for role, module in self.models.items()},
            "memory": self.memory,
            "received": self.received,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for role, module in self.models.items():
            module.load_state_dict(state["models"][role])
        self.memory, self.received = (moved(state[key], self.device) for key in ("memory", "received"))


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: w for name, w in module.named_parameters() if w.requires_grad}


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(v, device) for key, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [moved(v, device) for v in value]
    return value
