"""The serial engine: one client after another, any ``nn.Module``, CPU or GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedekd import models, rng
from fedekd.engines.job import Advance, Job, Scale, TrustLog, make_optimizer, pick_device, precision
from fedekd.engines.schedule import schedule
from fedekd.errors import FedekdError
from fedekd.exchange import Door, average, averaging_weights, same_shapes, shared_roles
from fedekd.methods.base import Batch, Beginning, Exchange, Remember, Train

EVALUATION_BATCH = 256


class Serial:
    """One job, round by round. ``state`` and ``restore`` carry it over an interruption to the bit.

    What it tells (``evaluate``, ``doors``, ``trust``) are lists over jobs, as in the stacked engine.
    """

    def __init__(self, job: Job, advance: Advance | None = None) -> None:
        self.job, self.method, self.task = job, job.method, job.task
        self.device = pick_device(job.training.device)
        self.advance = advance or (lambda round, client, samples: None)
        self.method.check(self.task.name)
        dataset = job.federation.dataset
        self.x, y = (torch.from_numpy(np.ascontiguousarray(a)).to(self.device) for a in (dataset.x, dataset.y))
        self.scale = Scale.of(job.federation, self.device)
        self.y = self.scale.targets(y)
        self.image = self.x.dim() == 4
        self.rows = [
            {split: torch.from_numpy(getattr(client, split)).to(self.device) for split in ("train", "val", "test")}
            for client in job.federation.clients
        ]
        self.clients = [{role: self._build(role, k) for role in self.method.roles} for k in range(len(self.rows))]
        self.memory = [self._begin(k) for k in range(len(self.clients))]
        self.door = Door(shared_roles(self.method, job.training.rounds))
        self.doors = [self.door]
        for role in self.door.roles:
            same_shapes([client[role].state_dict() for client in self.clients], role, job.federation.names)
        self.received = {role: _copy(_weights(self.clients[0][role])) for role in self.door.roles}
        self.server: dict[str, dict[str, Tensor]] = {role: {} for role in self.door.roles}
        self.round_number = 0
        self.trust: list[list[dict[str, object]]] = [[]]

    def _build(self, role: str, client: int) -> nn.Module:
        dataset = self.job.federation.dataset
        make, shape = self.job.factory(role), dataset.x.shape[1:]
        module = models.build(role, make, shape, dataset.outputs, self.job.seed, client)
        if self.image:
            return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return module.to(self.device)

    def _begin(self, k: int) -> dict[str, Any]:
        features: dict[str, int] = {}
        if self.method.needs_features:
            one = self.rows[k]["train"][:1]
            features = {role: self._outputs(k, role, one)[1].shape[-1] for role in self.method.roles}
        weights = {role: _copy(_weights(module)) for role, module in self.clients[k].items()}
        memory = self.method.begin(Beginning(weights, features, self.job.seed))
        return {key: moved(value, self.device) for key, value in memory.items()}

    # --- a round -----------------------------------------------------------------------------------------

    def round(self) -> None:
        self.door.log.clear()
        trust = TrustLog(1, self.device)
        with precision(self.job.training.precision, self.device):
            for step in self.method.steps(self.round_number):
                if isinstance(step, Train):
                    for k in range(len(self.clients)):
                        self._train(step, k, trust)
                elif isinstance(step, Remember):
                    for k in range(len(self.clients)):
                        self.memory[k] |= self._remember(step, k)
                else:
                    self._exchange(step)
        self.trust[0] += [record for record in trust.records(self.round_number) if record]
        self.round_number += 1

    def _train(self, step: Train, k: int, trust: TrustLog) -> None:
        training, rows, client = self.job.training, self.rows[k]["train"], self.clients[k]
        key = (step.roles[0], k, self.round_number)
        plan = schedule(
            self.job.seed, k, step.roles[0], self.round_number,
            n=len(rows), epochs=training.epochs, batch_size=training.batch_size, draws=self.method.draws,
        )  # fmt: skip
        taught = {role: self._outputs(k, role, rows) for role in step.frozen}
        weights = {role: _weights(client[role]) for role in self.method.anchors}
        trained = [w for role in step.roles for w in _weights(client[role]).values()]
        optimizer = make_optimizer(training, trained)
        for role in step.roles:
            client[role].train()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            number = rng.integer(self.job.seed, "dropout", *key)
            torch.default_generator.manual_seed(number)
            if self.device.type == "cuda":
                torch.cuda.manual_seed(number)
            for order, uniform in zip(plan.order, plan.uniform, strict=True):
                positions = torch.from_numpy(order).to(self.device).split(training.batch_size)
                numbers = torch.from_numpy(uniform).to(self.device).split(training.batch_size)
                for here, draws in zip(positions, numbers, strict=True):
                    at = rows[here]
                    x = self.scale.inputs(self.x[at])
                    out = {role: self._forward(client[role], x) for role in step.roles}
                    out |= {role: (o[here], f[here]) for role, (o, f) in taught.items()}
                    batch = self._batch(k, self.y[at], out, weights, draws)
                    result = step.loss(batch)
                    loss, extra = result if isinstance(result, tuple) else (result, {})
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if "trust" in extra:
                        trust.add(extra["trust"])
        name = self.job.federation.names[k]
        if not all(bool(torch.isfinite(w).all()) for w in trained):
            raise FedekdError(
                f"{self.method.name}: client {name} diverged in round {self.round_number + 1}; lower --lr"
            )
        self.advance(self.round_number, name, len(rows) * training.epochs)

    def _remember(self, step: Remember, k: int) -> dict[str, Any]:
        rows = self.rows[k][step.split] if step.split else self.rows[k]["train"][:0]
        out = {role: self._outputs(k, role, rows) for role in step.roles}
        weights = {role: _weights(self.clients[k][role]) for role in self.method.anchors}
        draws = rng.stream(self.job.seed, "remember", k, self.round_number).random((len(rows), self.method.draws))
        uniform = torch.from_numpy(draws).float().to(self.device)
        with torch.no_grad():
            return step.compute(self._batch(k, self.y[rows], out, weights, uniform))

    def _exchange(self, step: Exchange) -> None:
        names, role = self.job.federation.names, step.role
        sizes = [len(rows["train"]) for rows in self.rows]
        messages = [
            self.door.up(role, name, client[role].state_dict())
            for name, client in zip(names, self.clients, strict=True)
        ]
        mean = average(messages, averaging_weights(self.job.training.weighting, sizes))
        trainable = {name: mean[name] for name in self.received[role]}
        if step.server:
            changed, memory = step.server(trainable, self.received[role], self.server[role])
            trainable, self.server[role] = dict(changed), dict(memory)
        message = self.door.down({**mean, **trainable}, len(self.clients))
        for client in self.clients:
            client[role].load_state_dict(message)
        self.received[role] = trainable

    # --- outputs -----------------------------------------------------------------------------------------

    def _batch(
        self,
        k: int,
        y: Tensor,
        out: dict[str, tuple[Tensor, Tensor]],
        weights: dict[str, Any],
        uniform: Tensor,
    ) -> Batch:
        outputs = {role: o for role, (o, _) in out.items()}
        features = {role: f for role, (_, f) in out.items()}
        return Batch(self.task, y, outputs, features, weights, self.received, self.memory[k], uniform)

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
    def _outputs(self, k: int, role: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A frozen model's outputs and features on whole splits."""
        module = self.clients[k][role].eval()
        pieces = [self._forward(module, self.scale.inputs(self.x[part])) for part in rows.split(EVALUATION_BATCH)]
        return torch.cat([o for o, _ in pieces]), torch.cat([f for _, f in pieces])

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        with precision(self.job.training.precision, self.device):
            return [[self._score(k, rows, split) for k, rows in enumerate(self.rows)]]

    def _score(self, k: int, rows: dict[str, Tensor], split: str) -> float:
        output = self.method.predict(self.y[rows["train"]], len(rows[split]))
        if output is None:
            output = self._outputs(k, "private", rows[split])[0]
        return self.task.score(output, self.y[rows[split]])

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "clients": [{role: m.state_dict() for role, m in client.items()} for client in self.clients],
            "memory": self.memory,
            "received": self.received,
            "server": self.server,
            "bytes": [self.door.bytes_up, self.door.bytes_down],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for client, saved in zip(self.clients, state["clients"], strict=True):
            for role, module in client.items():
                module.load_state_dict(saved[role])
        self.round_number, self.trust = state["round"], state["trust"]
        self.memory, self.received, self.server = (
            moved(state[key], self.device) for key in ("memory", "received", "server")
        )
        self.door.bytes_up, self.door.bytes_down = state["bytes"]


def _weights(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: w for name, w in module.named_parameters() if w.requires_grad}


def _copy(weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: w.detach().clone() for name, w in weights.items()}


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(v, device) for key, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [moved(v, device) for v in value]
    return value
