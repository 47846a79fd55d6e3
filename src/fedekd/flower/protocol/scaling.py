"""How the numbers of a row become a model's input, and a regression's target what a model is trained on.

Statistics of a site's rows stay at the site, unless the schema's author gives the own ones to all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedekd.data.federation import input_statistics, target_statistics
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError

OWN = "own"


@dataclass(frozen=True)
class Scaling:
    """A model's input is x * gain + shift; a regression trains on (y - mean) / std.

    What is "own" each site takes from its own training rows. That fits together: a model then tells by how many
    deviations a target lies off its site's mean, from how many the inputs do, and sites whose means differ do not
    pull each other's models away.
    """

    gain: Any = OWN
    shift: Any = OWN
    mean: Any = 0.0
    std: Any = 1.0

    @classmethod
    def public(cls, dataset: Dataset) -> Scaling:
        """Nothing of the rows: values of a fixed range, such as pixels, by that range, all else at each site."""
        inputs: tuple[Any, Any] = (OWN, OWN)
        if dataset.scale is not None:
            shift, gain = input_statistics(dataset, np.arange(0))
            inputs = (gain.tolist(), shift.tolist())
        return cls(*inputs, *((OWN, OWN) if dataset.standardise_target else (0.0, 1.0)))

    @classmethod
    def of(cls, dataset: Dataset) -> Scaling:
        """From the rows of a dataset whose owner gives their means and deviations to all."""
        if dataset.gaps:
            raise FedekdError(
                f"{dataset.source or dataset.name} has missing values; fill them to give a scaling to all, "
                'or leave such rows of a table out with missing = "drop" in site.toml'
            )
        every = np.arange(len(dataset.y))
        shift, gain = input_statistics(dataset, every)
        return cls(gain.tolist(), shift.tolist(), *target_statistics(dataset, every))

    @property
    def own(self) -> bool:
        """Whether a site's rows have a part in it."""
        return isinstance(self.gain, str) or isinstance(self.mean, str)

    def at_site(self, dataset: Dataset, train: np.ndarray) -> Scaling:
        """The numbers of a site with these training rows. A category is 0 or 1 everywhere and needs none."""
        numbers = self
        if self.gain == OWN:
            shift, gain = input_statistics(replace(dataset, scale=None), train)
            for place, name in enumerate(dataset.columns):
                if "=" in name:
                    gain[place], shift[place] = 1, 0
            numbers = replace(numbers, gain=gain, shift=shift)
        if self.mean == OWN:
            mean, std = target_statistics(replace(dataset, standardise_target=True), train)
            numbers = replace(numbers, mean=mean, std=std)
        return numbers

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which `check` finds
            return np.asarray(self.gain, np.float32), np.asarray(self.shift, np.float32)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for what cannot be, since it may come from another machine."""
        if not self.mean == self.std == OWN and not (np.isfinite([self.mean, self.std]).all() and self.std > 0):
            raise ValueError(f"a target of mean {self.mean} and deviation {self.std}")
        if self.gain == self.shift == OWN:
            return
        gain, shift = self.arrays()
        if not (np.isfinite(gain).all() and np.isfinite(shift).all() and gain.all()):
            raise ValueError("scaling has missing or infinite numbers, or a gain of 0")
        if np.broadcast_shapes(gain.shape, shift.shape, shape) != shape:
            raise ValueError(f"scaling of shape {gain.shape} for rows of shape {shape}")
