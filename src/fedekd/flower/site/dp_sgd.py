"""What a site spends of its privacy budget: a ledger on disk, and what it comes to by Opacus's accountant.

An entry is written before the noise that it pays for is drawn, and stands for one result: the same training on the
same rows has the same key and is paid for once, however often a visit is lost. Anything else is paid for anew, and
refused past the budget: also when a server asks for a visit twice with different models, or the rows change in the
middle of a federation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.atomic import write_text
from fedekd.flower.protocol.codes import Code, Failed
from fedekd.flower.saved_state import SavedState
from fedekd.flower.settings import Privacy

SPENT = "spent.json"


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
            raise Failed(Code.BUDGET, text)
        with SavedState(self.folder.parent).locked():  # a server may begin two federations in the same moment
            self._check_others()
            self.ledger = {"noise": self.noise, "weak": self.weak or weak, "spent": spent}
            write_text(self.folder / SPENT, json.dumps(self.ledger) + "\n")

    def _check_others(self) -> None:
        for other in self.folder.parent.glob(f"*/{SPENT}"):
            if other.parent != self.folder:
                raise Failed(
                    Code.BUDGET,
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
        accountant = _accountant()
        accountant.history = [(self.noise, rate, count) for rate, count in steps.items()]
        return max(0.0, float(accountant.get_epsilon(self.dp.delta))) if steps else 0.0


def _accountant() -> Any:
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise FedekdError("[dp] needs Opacus; get it with: pip install 'fedekd[dp]'") from None
    return RDPAccountant()


@cache
def _noise(dp: Privacy, rate: float, steps: int) -> float:
    """The least noise (in multiples of the clipping norm) that keeps all steps within the budget."""
    _accountant()
    from opacus.accountants.utils import get_noise_multiplier

    if not steps:
        return 0.0
    try:
        return float(
            get_noise_multiplier(
                target_epsilon=dp.epsilon, target_delta=dp.delta, sample_rate=rate, steps=steps, accountant="rdp"
            )
        )
    except ValueError as error:
        raise FedekdError(
            f"no noise keeps {steps} steps within epsilon {dp.epsilon:g} at delta {dp.delta:g} ({error}); raise epsilon"
        ) from None
