"""What the server combines: the uploads of one exchange, and what it knows besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedekd.methods.base import Tree


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """What the server received in one exchange from the clients that took part; of models, their trainable weights."""

    given: Tree | Sequence[Tree]  # as `stacked` or as `each`
    weights: Tensor  # [K], their sum is 1
    previous: Tree  # the last result; if it goes into a model, at first what all clients begin with
    memory: Any  # what the server remembers of this exchange, at first {}
    numbers: Sequence[int]  # which clients these are
    clients: int  # of the whole federation
    average: Callable[[Tree, Tensor], Tree]
    public: tuple[Tensor, Tensor] | None = None  # inputs and targets of the public rows
    module: Callable[[str, int], nn.Module] | None = field(default=None, compare=False)  # a client's, freshly built
    seed: int = 0
    round: int = 0
    mean_only: bool = False  # single uploads are not to be read

    @cached_property
    def stacked(self) -> Tree:
        """All uploads as one tree of [K, ...]."""
        self._single("stacked")
        return self._stacked

    @cached_property
    def each(self) -> Sequence[Tree]:
        self._single("each")
        if isinstance(self.given, Mapping):
            return [{name: t[k] for name, t in self.given.items()} for k in range(len(self.weights))]
        return self.given

    def mean(self, *, equally: bool = False) -> Tree:
        """By training samples with ``--weighting samples``, unless all should count ``equally``; else uniform."""
        return self.average(self._stacked, self._weights(equally))

    def mean_change(self, *, equally: bool = False) -> Tree:
        """How far the uploaded models have moved from the last result; exactly 0 where none has."""
        moved = {name: w - self.previous[name] for name, w in self._stacked.items()}
        return self.average(moved, self._weights(equally))

    def _weights(self, equally: bool) -> Tensor:
        return 0 * self.weights + 1 / len(self.numbers) if equally else self.weights

    @cached_property
    def _stacked(self) -> Tree:
        import torch

        if isinstance(self.given, Mapping):
            return self.given
        return {name: torch.stack([tree[name] for tree in self.given]) for name in self.given[0]}

    def _single(self, name: str) -> None:
        if self.mean_only:
            raise FedekdError(
                f"its exchange is `mean_only` and reads `uploads.{name}`; read mean() or mean_change(), or leave "
                "`mean_only` out"
            )
