"""Whose model the server does not believe: by its size, by its direction, and by what its site sent before.

A check must not turn away an honest site whose rows differ from the others'. So the directions are judged only where
the other sites agree: a value below a bound counts where the median of the others' lies clearly above it. The bounds
lie outside of what honest clients showed in 10 rounds on digits (Dirichlet 0.1 and 0.5), diabetes (0.1) and heart, with
FedAvg, SCAFFOLD and FedeKD, alone and beside a client that sent the opposite; docs/make_attacks.py measures what they
catch. What they cannot catch, a robust combination must bear: between very unlike sites, a model that learnt the
opposite looks like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

Message = Mapping[str, Tensor]
FACTOR = 5.0
"""A model whose norm is so many times the median of all, or so many times less, is no honest neighbour of theirs.

The norm is the whole model's, not its update's: a site with twenty times the rows takes twenty times the steps and
may rightly move twenty times as far, but its weights stay of one size with the others'.
"""
ALONE = 20.0
"""The same for a model that has none beside it, but only the global model that it was trained from.

That is no neighbour: in the first round it has the size that a factory gave it. The built-in proxies stay near it (in
10 rounds on digits and on diabetes, with the settings of ``fedekd run``, a round changed the norm by 7 % at most), but
a linear one shrank to a ninth in a first round of 100 epochs, and a hundredfold learning rate or the noise of a small
privacy budget made a first round's norm seven to ten times as large.
"""
AWAY = (0.0, 0.5)
"""Cosine of a model and the global model it was trained from; honest ones had 0.97 at least."""
AGAINST = (-0.2, 0.1)
"""Median cosine of a site's update and the others', a mean over its last rounds. Honest ones went down to −0.52, with
FedAvg on heart, where the hospitals' shares of ill patients differ most; but where one was below −0.2 the median of the
others was 0.03 at most."""
TURNED = (-0.4, 0.2)
"""Cosine of a site's update and the sum of its earlier ones; honest ones had −0.19 at least."""
ROUNDS, WINDOW = 3, 10  # uploads of a site before its history counts, and how many of the last ones count
SKETCH = 4096  # numbers that stand for an update in a site's history: a cosine of two is true to about 0.02


class UploadChecks:
    """The checks of one federation, with what they remember of each site."""

    def __init__(self) -> None:
        self.agreement: dict[str, dict[str, list[float]]] = {}
        """By exchange and site: the median cosine to the others' updates, of its last uploads."""
        self.past: dict[str, dict[str, Tensor]] = {}
        """By exchange and site: the sum of its updates' sketches, each of length 1, of those that counted."""
        self._newest: dict[str, tuple[dict[str, float], dict[str, Tensor]]] = {}

    def refused(self, name: str, messages: Mapping[str, Message], held: Message, updates: bool) -> dict[str, str]:
        """By site: why its model does not count. ``held`` is the global model; ``updates``: that all began from it."""
        found = outsized(messages, held)
        believed = {site: message for site, message in messages.items() if site not in found}
        found |= _away(believed, held)
        if not updates:
            return found
        changes = {site: _changes(messages[site], held) for site in messages if site not in found}
        among = _among(changes)
        sketches = {site: _sketch(change) for site, change in changes.items()}
        self._newest[name] = among, sketches
        known = self.agreement.get(name, {})
        series = {site: [*known.get(site, ()), value][-WINDOW:] for site, value in among.items()}
        means = {site: fmean(values) for site, values in series.items() if len(values) >= ROUNDS}
        for site in _outliers(means, AGAINST):
            found[site] = (
                f"its updates point against the other sites' (cosine {means[site]:.2f} on average over its last "
                f"{len(series[site])})"
            )
        own = {
            site: _cosine(sketch, past)
            for site, sketch in sketches.items()
            if (past := self.past.get(name, {}).get(site)) is not None and len(known.get(site, ())) >= ROUNDS
        }
        for site in _outliers(own, TURNED):
            found.setdefault(site, f"its update points against its own earlier ones (cosine {own[site]:.2f})")
        return found

    def remember(self, counted: Iterable[str]) -> None:
        """Keep what the last calls of ``refused`` have seen; ``counted``: the sites whose uploads were used."""
        used = set(counted)
        for name, (among, sketches) in self._newest.items():
            known, past = self.agreement.setdefault(name, {}), self.past.setdefault(name, {})
            for site, value in among.items():
                known[site] = [*known.get(site, ()), value][-WINDOW:]
            for site in used & sketches.keys():
                past[site] = past.get(site, torch.zeros(SKETCH)) + sketches[site]
        self._newest = {}

    def state(self) -> dict[str, Any]:
        return {"agreement": self.agreement, "past": self.past}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.agreement, self.past = state.get("agreement", {}), state.get("past", {})


def outsized(messages: Mapping[str, Message], held: Message) -> dict[str, str]:
    """By site: why its model is too large or too small.

    Two models cannot outvote each other, so the global model that the sites were given has a third voice. Where both
    agree against it they have learnt much, and are right.
    """
    norms, given = {site: norm(message) for site, message in messages.items()}, norm(held)
    middle = median([*norms.values(), given, given][: max(3, len(norms))])
    if not middle:
        return {}  # models may begin with zeros, from which everything is far
    factor = ALONE if len(norms) == 1 else FACTOR
    voices = {1: "the global model's", 2: "the median of 2 sites and the global model"}
    whose = voices.get(len(norms), f"the median of {len(norms)} sites")
    return {
        site: f"its norm {one:.3g} is far from {middle:.3g}, {whose}"
        for site, one in norms.items()
        if not middle / factor <= one <= middle * factor
    }


def norm(message: Message) -> float:
    return _dot(message, message) ** 0.5


def _away(messages: Mapping[str, Message], held: Message) -> dict[str, str]:
    size = norm(held)
    cosines = {
        site: _dot(message, held) / (size * own)
        for site, message in messages.items()
        if (own := norm(message)) and size
    }
    return {
        site: f"it points away from the global model (cosine {cosines[site]:.2f}), and the others do not"
        for site in _outliers(cosines, AWAY)
    }


def _outliers(values: Mapping[str, float], bounds: tuple[float, float]) -> list[str]:
    """The sites below the first bound, where the median of the others lies above the second."""
    low, high = bounds
    return [
        site
        for site, value in values.items()
        if value < low and len(values) > 1 and median(v for other, v in values.items() if other != site) > high
    ]


def _dot(one: Message, other: Message) -> float:
    return float(sum((t.double() * other[n].double()).sum() for n, t in one.items() if t.is_floating_point()))


def _changes(message: Message, held: Message) -> dict[str, Tensor]:
    return {n: t - held[n] for n, t in message.items() if t.is_floating_point()}


def _among(changes: Mapping[str, Message]) -> dict[str, float]:
    """By site: the median of its update's cosines with the others'; nothing where two cannot tell who is wrong."""
    sites = [site for site, change in changes.items() if norm(change)]
    if len(sites) < 3:
        return {}
    products = torch.zeros(len(sites), len(sites), dtype=torch.float64)
    for name in changes[sites[0]]:
        every = torch.stack([changes[site][name].flatten() for site in sites]).double()
        products += every @ every.T
    lengths = products.diagonal().sqrt()
    cosines = products / lengths[:, None] / lengths
    return {
        site: median([c for k, c in enumerate(row) if k != place])
        for place, (site, row) in enumerate(zip(sites, cosines.tolist(), strict=True))
    }


def _sketch(change: Message) -> Tensor:
    """The update in few numbers, of length 1: each number goes, with a random sign, into a random place."""
    generator, found = torch.Generator().manual_seed(0), torch.zeros(SKETCH)
    for tensor in change.values():
        drawn = torch.randint(0, 2 * SKETCH, (tensor.numel(),), generator=generator)
        found.index_add_(0, drawn % SKETCH, tensor.flatten().float() * (1 - 2 * (drawn // SKETCH)))
    return found / found.norm().clamp(min=1e-30)


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()).clamp(min=1e-30))
