"""DP-SGD as Opacus has it: the budget and the noise that it allows, a ledger of what is spent, the noisy optimiser.

An entry of the ledger is written before the noise that it pays for is drawn, and stands for one result: the same
training on the same rows has the same key and is paid for once, however often a visit is lost. Anything else is paid
for anew, and refused past the budget: also when a server asks for a visit twice with different models, or the rows
change in the middle of a federation.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed, StatusCode
from fedekd.flower.saved_state import locked, write_text
from fedekd.flower.settings import Privacy

try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from opacus.accountants import PRVAccountant, RDPAccountant
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer
except ImportError:
    raise FedekdError("[dp] needs Opacus; get it with: pip install 'fedekd[dp]'") from None

SPENT = "spent.json"
LARGE = 50.0
"""Epsilon up to which the PRV accountant is asked. It needs about 6 % less noise than RDP for the same budget, but for
much more than this its grid takes gigabytes."""


class Budget:
    """The budget of one federation: ``planned`` steps, each on rows drawn with probability ``rate``."""

    def __init__(self, dp: Privacy, folder: Path, rate: float, planned: int) -> None:
        self.dp, self.folder, self.rate, self.planned = dp, folder, rate, planned
        self._check_others()
        self.ledger = self._read()

    @cached_property
    def noise(self) -> float:
        """In multiples of the clipping norm; it takes seconds to find, and is kept in the ledger."""
        return float(self.ledger["noise"] or _noise(self.dp, self.rate, self.planned))

    @property
    def epsilon(self) -> float:
        """What was spent so far."""
        return self._epsilon(self.ledger["spent"])

    @property
    def weak(self) -> bool:
        """Whether any of it went into a result whose guarantee is for a fixed private model only."""
        return bool(self.ledger["weak"])

    def spend(self, key: str, steps: int, *, weak: bool) -> None:
        spent = {**self.ledger["spent"], key: [self.rate, steps]}
        epsilon = self._epsilon(spent)
        if not epsilon <= self.dp.epsilon:
            text = f"epsilon would be {epsilon:.3g}, more than {self.dp.epsilon:g}: the budget is spent"
            raise Failed(StatusCode.BUDGET, text)
        with locked(self.folder.parent):  # a server may begin two federations in the same moment
            self._check_others()
            self.ledger = {"noise": self.noise, "weak": self.weak or weak, "spent": spent}
            write_text(self.folder / SPENT, json.dumps({**self.ledger, "epsilon": epsilon}) + "\n")

    def _check_others(self) -> None:
        for other in self.folder.parent.glob(f"*/{SPENT}"):
            if other.parent != self.folder:
                raise Failed(
                    StatusCode.BUDGET,
                    f"this site's privacy budget was spent in federation {other.parent.name}; two federations on the "
                    "same rows add up: set another `state` if that is meant",
                )

    def _read(self) -> dict[str, Any]:
        path = self.folder / SPENT
        try:
            given = json.loads(path.read_text())
            return {name: given[name] for name in ("noise", "weak", "spent")}
        except FileNotFoundError:
            return {"noise": None, "weak": False, "spent": {}}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FedekdError(f"cannot read what was spent of the privacy budget, {path}: {error}") from None

    def _epsilon(self, spent: Mapping[str, tuple[float, int]]) -> float:
        steps: Counter[float] = Counter()
        for rate, count in spent.values():
            steps[rate] += count
        return _epsilon(tuple((self.noise, rate, count) for rate, count in steps.items()), self.dp.delta)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the accountants' remarks that another grid could give a smaller bound: those that they give hold."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _epsilon(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """The smaller of two bounds that both hold, so that what was begun under one of them stays within it."""
    found = math.inf if history else 0.0
    for kind in (RDPAccountant, PRVAccountant):
        if kind is PRVAccountant and not 0 < found <= LARGE:
            break
        accountant = kind()
        accountant.history = [*history]
        # PRV raises for what its grid does not hold, and divides by 0 where every row is drawn, which it expects.
        with contextlib.suppress(ValueError, RuntimeError, MemoryError), _quiet():
            found = min(found, float(accountant.get_epsilon(delta)))
    return max(0.0, found)


@cache
def _noise(dp: Privacy, rate: float, steps: int) -> float:
    """The least noise (in multiples of the clipping norm) that keeps all steps within the budget."""
    if not steps:
        return 0.0
    why = ""
    for accountant in ("prv", "rdp") if dp.epsilon <= LARGE else ("rdp",):
        try:
            with _quiet():
                noise = get_noise_multiplier(
                    target_epsilon=dp.epsilon, target_delta=dp.delta, sample_rate=rate, steps=steps,
                    accountant=accountant,
                )  # fmt: skip
            return float(noise)
        except (ValueError, RuntimeError, MemoryError) as error:
            why = str(error)
    raise FedekdError(
        f"no noise keeps {steps} steps within epsilon {dp.epsilon:g} at delta {dp.delta:g} ({why}); raise epsilon"
    )


class KeyedRandom:
    """Random numbers out of AES in counter mode, that only its key foretells.

    Opacus takes noise from a torch generator. On a CPU that is seeded with 32 bits, few enough to try them all: whoever
    did so could take the noise off again. Here a key of 32 bytes says all, the same on any device.
    """

    def __init__(self, key: bytes) -> None:
        self.stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, *shape: int) -> np.ndarray:
        """In [0, 1), in steps of 2^-53."""
        words = np.frombuffer(self.stream.update(bytes(8 * math.prod(shape))), "<u8")
        return (words >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53

    def normal(self, *shape: int) -> np.ndarray:
        """By Box and Muller."""
        radius = np.sqrt(-2 * np.log1p(-self.uniform(*shape)))
        return np.asarray(radius * np.cos(2 * np.pi * self.uniform(*shape)))


class NoisyOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus's clipping and scaling, with noise from ``random``."""

    def __init__(self, optimizer: torch.optim.Optimizer, random: KeyedRandom, **given: Any) -> None:
        super().__init__(optimizer, **given)
        self.random = random
        self.rest: list[Tensor] = []

    def take(self, of_rows: Sequence[Tensor], rest: Sequence[Tensor]) -> None:
        """One step along each row's clipped gradient and the noise, and along ``rest``, into which no row enters.

        A row whose gradient has no size to clip to counts as none: 0 times infinity would spoil the whole sum.
        """
        whole = torch.stack([g.flatten(1).isfinite().all(1) for g in of_rows]).all(0)
        for weight, gradients in zip(self.params, of_rows, strict=True):
            weight.grad_sample = gradients[whole]
        self.rest = list(rest)
        self.step()
        self.zero_grad()

    def add_noise(self) -> None:
        std = self.noise_multiplier * self.max_grad_norm
        for weight in self.params:
            noise = torch.from_numpy(std * self.random.normal(*weight.shape)).to(weight)
            weight.grad = weight.summed_grad.view_as(weight) + noise

    def scale_grad(self) -> None:
        super().scale_grad()
        for weight, more in zip(self.params, self.rest, strict=False):
            weight.grad += more
