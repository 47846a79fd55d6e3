"""A kept private model, ready for use: raw rows go in, probabilities or numbers in the user's units come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedekd import models
from fedekd.errors import FedekdError
from fedekd.handover.facts import Facts

BUILT_IN = "fedekd.models:private"


class Ready(nn.Module):
    gain: Tensor
    shift: Tensor

    def __init__(self, module: nn.Module, facts: Facts) -> None:
        super().__init__()
        self.module, self.classifies = module, facts.classifies
        for name, value in zip(("gain", "shift"), facts.scale, strict=True):
            wide = value.reshape((1,) * (len(facts.shape) - value.ndim) + value.shape)
            self.register_buffer(name, torch.from_numpy(np.array(wide, np.float32)))
        self.mean, self.std = facts.target

    def forward(self, raw: Tensor) -> Tensor:
        output = self.module(torch.addcmul(self.shift, raw.float(), self.gain)).float()
        if self.classifies:
            return output.softmax(-1)
        return (output.squeeze(-1) if output.dim() > 1 else output) * self.std + self.mean


def make_ready(facts: Facts, private: str | None = None) -> Ready:
    """The model in the file of these facts; ``private`` names the factory of a model of the user's own."""
    return Ready(_build(facts, private), facts).eval()


def read_weights(facts: Facts) -> dict[str, Tensor]:
    try:
        return load_file(facts.path)
    except (SafetensorError, OSError, ValueError) as error:
        raise FedekdError(f"{facts.path} is not a whole .safetensors file ({error}); export it again") from None


def _build(facts: Facts, private: str | None) -> nn.Module:
    """The bare model. What a file names is never imported on its word alone: it could name any function there is."""
    named = facts.model
    if private is None and named != BUILT_IN:
        raise FedekdError(f"{facts.path} holds a model of your own; say where its code is: --private {named}")
    make = _factory(private)
    weights = read_weights(facts)
    module = models.build("private", make, facts.shape, facts.outputs, facts.seed, facts.position)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise FedekdError(f"the weights in {facts.path} do not fit the model {private or named}: {why}") from None
    return module


def _factory(private: str | None) -> models.Factory:
    try:
        return models.factory("private", private)
    except FedekdError as error:
        if not isinstance(error.__context__, ModuleNotFoundError):
            raise
        raise FedekdError(
            f"{error}; looked for among the installed packages and in {Path.cwd()}: give the command in the folder "
            "that holds the module (at a site, that of site.toml)"
        ) from None
