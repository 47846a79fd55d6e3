"""A kept model, ready for use: raw rows go in, probabilities or numbers in the user's units come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

from fedekd import architectures, methods, models
from fedekd.engines.batch import held_to_answer, make_batch
from fedekd.errors import FedekdError
from fedekd.files import failed_read
from fedekd.methods.base import Method
from fedekd.models import trainable
from fedekd.runs.metadata import KNOWLEDGE, ModelMetadata, OwnCode
from fedekd.settings import model_name
from fedekd.tasks import make_task

if TYPE_CHECKING:
    from fedekd.engines.job import Job
    from fedekd.methods.batch import Batch

BUILT_IN = {kind: f"fedekd.models:{kind}" for kind in models.BUILT_IN}
T = TypeVar("T")
Find = Callable[[str], models.Factory]  # the factory of "private" or "proxy" models


class InferenceModel(nn.Module):
    """The method's ``predict`` over the client's models and what it knows, from raw rows to the user's units."""

    gain: Tensor
    shift: Tensor

    def __init__(
        self, metadata: ModelMetadata, method: Method, modules: Mapping[str, nn.Module], known: Mapping[str, Tensor]
    ):
        super().__init__()
        self.method, self.classifies, self.answers = method, metadata.classifies, metadata.answers
        self.held = nn.ModuleList(modules.values())
        self.roles = tuple(modules)
        below = {method.heads[role] for role in method.answers if role in method.heads}
        self.forwarded = tuple(role for role in modules if role in below or role in method.answers)
        for name, value in zip(("gain", "shift"), metadata.scale, strict=True):
            wide = value.reshape((1,) * (len(metadata.shape) - value.ndim) + value.shape)
            self.register_buffer(name, torch.from_numpy(np.array(wide, np.float32)))
        self.mean, self.std = metadata.target
        self.task = make_task(str(metadata.about["task"]), self.std)
        self.known = tuple(known)
        for place, tensor in enumerate(known.values()):
            self.register_buffer(f"known_{place}", tensor)
        self.register_buffer("counts", torch.tensor(self.answers.counts if self.answers else [0]))

    def forward(self, raw: Tensor) -> Tensor:
        output = self.method.predict(self._batch(torch.addcmul(self.shift, raw.float(), self.gain)))
        return output.softmax(-1) if self.classifies else output * self.std + self.mean

    def _batch(self, x: Tensor) -> Batch:
        """What the method saw of its client's test rows; see ``Client.predictions``."""
        modules, heads, wanted = (
            dict(zip(self.roles, self.held, strict=True)),
            self.method.heads,
            self.method.needs_features,
        )
        outputs: dict[str, Tensor] = {}
        features: dict[str, Tensor] = {}
        for role in self.forwarded:
            if role in heads:
                features[role] = features[heads[role]]
                raw = modules[role](features[role])
            elif wanted:
                raw, features[role] = models.with_features(modules[role], x)
            else:
                raw = modules[role](x)
            outputs[role] = self.task.read(raw)
        kind = torch.int64 if self.classifies else torch.float32
        seen = {
            "x": x,
            "y": torch.zeros(x.shape[0], dtype=kind),
            "outputs": outputs,
            "features": features,
            "weights": {role: trainable(modules[role]) for role in self.method.reads_weights if role in modules},
            **_nested({name: getattr(self, f"known_{place}") for place, name in enumerate(self.known)}),
            "uniform": torch.zeros(x.shape[0], self.method.uniforms),
            "rows": torch.arange(x.shape[0]),
            "counts": self.counts,
            "steps": torch.tensor(self.answers.steps if self.answers else 0),
        }

        def apply(role: str, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
            if role not in modules:
                raise FedekdError(f"{self.method.name} applies the {role} model, which its `answers` do not name")
            return self.task.read(functional_call(modules[role], dict(weights), (inputs,)))

        return make_batch(self.method, self.task, self.answers.lr if self.answers else 0.0, seen, apply)


def _nested(leaves: dict[str, Tensor]) -> dict[str, Any]:
    """The trees of KNOWLEDGE whose leaves were written."""
    trees: dict[str, Any] = {what: {} for what in KNOWLEDGE}
    for name, tensor in leaves.items():
        *path, last = name.split("/")
        tree = trees
        for key in path:
            tree = tree.setdefault(key, {})
        tree[last] = tensor
    return trees


def load_model(metadata: ModelMetadata, code: OwnCode | None = None) -> InferenceModel:
    """The model in this file."""
    code = code or OwnCode()
    method = _method(metadata, code)

    def find(kind: str) -> models.Factory:
        named = metadata.model if kind == "private" else (metadata.answers and metadata.answers.proxy) or BUILT_IN[kind]
        given = getattr(code, kind) or architectures.name_of(named)
        if given is None and named != BUILT_IN[kind]:
            raise FedekdError(f"{metadata.path} holds a model of your own; say where its code is: --{kind} {named}")
        return _looked_for(lambda: models.factory(kind, given))

    weights = read_weights(metadata)
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise FedekdError(f"{metadata.path} holds weights that are no numbers ({name}); train or export it again")
    return _assembled(metadata, method, find, weights)


def check_answers(path: Path, about: Mapping[str, Any], job: Job, tensors: Mapping[str, Tensor]) -> None:
    """Raise for a method whose answers cannot be made from what is about to be written."""
    _assembled(ModelMetadata.of(path, about), job.method, job.factory, tensors)


def read_weights(metadata: ModelMetadata) -> dict[str, Tensor]:
    try:
        return load_file(metadata.path)
    except (SafetensorError, OSError, ValueError) as error:
        raise failed_read(
            metadata.path,
            error,
            FedekdError(f"{metadata.path} is not a whole .safetensors file ({error}); export it again"),
        ) from None


def _assembled(metadata: ModelMetadata, method: Method, find: Find, tensors: Mapping[str, Tensor]) -> InferenceModel:
    if metadata.answers is None:
        modules = {"private": _build(metadata, method, "private", find, {}, tensors)}
        return InferenceModel(metadata, method, modules, {}).eval()
    lacking = [name for name in metadata.answers.knows if name not in tensors]
    if lacking:
        raise FedekdError(f"{metadata.path} is damaged: it lacks {lacking[0]}; export it again")
    modules = {}
    for role in held_to_answer(method):
        start = f"models/{role}/"
        state = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        if not state and role not in metadata.answers.roles:
            raise FedekdError(
                f"{metadata.path} holds no {role} model, from which {method.name} answers; {_other(metadata)}"
            )
        modules[role] = _build(metadata, method, role, find, modules, state)
    ready = InferenceModel(metadata, method, modules, {name: tensors[name] for name in metadata.answers.knows}).eval()
    _check_two_rows(metadata, ready)
    return ready


def _build(
    metadata: ModelMetadata,
    method: Method,
    role: str,
    find: Find,
    modules: Mapping[str, nn.Module],
    state: Mapping[str, Tensor],
) -> nn.Module:
    """The bare model of one role."""
    root = method.root(role)
    module: nn.Module
    if role in method.heads:
        what, module = f"head {role}", models.zero_head(modules[method.heads[role]], metadata.outputs)
    else:
        make = find("private" if root == "private" else "proxy")
        what, module = (
            model_name(make),
            models.build(root, make, metadata.shape, metadata.outputs, metadata.seed, metadata.position),
        )
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise FedekdError(f"the weights in {metadata.path} do not fit the model {what}: {why}") from None
    return module


def _check_two_rows(metadata: ModelMetadata, ready: InferenceModel) -> None:
    """Two blank rows, so that what does not fit together is found before it is used."""
    try:
        with torch.no_grad():
            found = ready(torch.zeros(2, *metadata.shape))
    except FedekdError:
        raise
    except Exception as error:  # a user's method may raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedekdError(
            f"{ready.method.name} cannot answer from what {metadata.path} holds ({why}); {_other(metadata)}"
        ) from None
    wanted = (2, metadata.outputs) if metadata.classifies else (2,)
    if found.shape != wanted:
        raise FedekdError(
            f"{ready.method.name} gives {tuple(found.shape)} for two rows of {metadata.path}, not {wanted}"
        )


def _other(metadata: ModelMetadata) -> str:
    assert metadata.answers is not None
    return f"export it again, or name the method it was trained with: --method {metadata.answers.code}"


def _method(metadata: ModelMetadata, code: OwnCode) -> Method:
    """The method that answers, with the file's parameters."""
    if metadata.answers is None:
        return Method()
    named, given = metadata.answers, code.method
    plain, _, control = named.method.partition("@")
    found = methods.known().get(plain)
    if found is not None and control in methods.CONTROLS:
        found = methods.twin(found, control)
    if given is not None:
        found = _looked_for(lambda: methods.get(given))
    elif found is None or model_name(type(found)) != named.code:
        raise FedekdError(
            f"{metadata.path} answers by a method of your own; say where its code is: --method {named.code}"
        )
    changed = {name: value for name, value in named.parameters.items() if getattr(found, name, named) != value}
    method = methods.with_parameters(found, changed)
    method.check(str(metadata.about["task"]))
    return method


def _looked_for(find: Callable[[], T]) -> T:
    try:
        return find()
    except FedekdError as error:
        if not isinstance(error.__context__, ModuleNotFoundError):
            raise
        raise FedekdError(
            f"{error}; looked for among the installed packages and in {Path.cwd()}: give the command in the folder "
            "that holds the module (at a site, that of site.toml)"
        ) from None
