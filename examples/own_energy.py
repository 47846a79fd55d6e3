"""A gate of your own: another energy in FedeKD.

    python examples/own_energy.py [FOLDER]

FedeKD distrusts the proxy on a sample where it contradicts the private model. ``LabelEnergy`` uses the label instead:
the proxy's own loss on a training sample, which is high where the proxy is wrong. The control ``fedekd-permuted``, the
same kind of weights on the wrong samples, shows whether it matters which samples are trusted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import fedekd
from fedekd.methods import Batch
from fedekd.methods.fedekd import FedeKD
from fedekd.runs.verdict_text import told


@dataclass(frozen=True)
class LabelEnergy(FedeKD):
    """FedeKD whose gate trusts the proxy where it knows the label"""

    name = "label-energy"

    def energies(self, batch: Batch) -> Tensor:
        return batch.task.loss(batch.outputs["proxy"], batch.y)


def main(folder: Path) -> None:
    result = fedekd.run(
        "diabetes",
        clients=4,
        alpha=0.5,
        methods=["fedekd", LabelEnergy(), "fedekd-permuted"],
        seeds=range(3),
        rounds=6,
        epochs=2,
        out=str(folder),
        progress=False,
    )
    print("change of the RMSE against training alone (negative is better), three seeds")
    for method in result.transfer:
        delta = method.summary["delta"]
        low, high = delta["interval"]
        line = f"{method.label:16} {delta['mean']:+6.2f}  95 % interval [{low:+.2f}, {high:+.2f}]"
        print(f"{line}  {told(method)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-own-energy"))
