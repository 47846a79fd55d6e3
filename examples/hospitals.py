"""A CSV file for each hospital: does joining help each of them?

    python examples/hospitals.py [FOLDER]

Writes a table of breast-tumour measurements for each of four hospitals of unequal size and case mix. Trains each alone
and with FedeKD and FedAvg, says whom joining helped, and gives the smallest hospital its own model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedekd
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.runs.verdict_text import told

SIZES = {"university": 300, "city": 150, "county": 80, "island": 39}
MALIGNANT = {
    "university": 0.55,
    "city": 0.2,
    "county": 0.25,
    "island": 0.3,
}  # share of cases: referral centres see more


def write_tables(folder: Path) -> None:
    """Deal the patients out so that each hospital sees its own mix of cases."""
    table = load_breast_cancer(as_frame=True).frame
    table["diagnosis"] = table.pop("target").map({0: "malignant", 1: "benign"})
    table = table.sample(frac=1, random_state=0)
    waiting = {kind: list(rows.index) for kind, rows in table.groupby("diagnosis")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        malignant = min(round(size * MALIGNANT[name]), len(waiting["malignant"]))
        counts = {"malignant": malignant, "benign": min(size - malignant, len(waiting["benign"]))}
        rows = [waiting[kind].pop() for kind, count in counts.items() for _ in range(count)]
        table.loc[rows].to_csv(folder / f"{name}.csv", index=False)


def main(folder: Path) -> None:
    write_tables(folder / "sites")
    result = fedekd.run(
        f"{folder / 'sites'}/",
        target="diagnosis",
        methods=["fedekd", "fedavg"],
        seeds=range(3),
        rounds=5,
        out=str(folder / "results"),
        progress=False,
    )
    frame = result.to_frame()
    print("accuracy alone, and what joining adds to it, in points, mean of three seeds")
    deltas = frame.pivot_table("delta", "id", "method", sort=False)[["fedekd", "fedavg"]] * 100
    alone = frame[frame["method"] == "local"].groupby("id")["value"].mean() * 100
    print(deltas.assign(alone=alone, rows=SIZES).loc[list(SIZES)].round(1).to_string())
    for method in result.transfer:
        print(f"{method.label}: {told(method)}")

    export(folder / "results", "island", folder / "island.safetensors")
    found = predict(folder / "island.safetensors", folder / "sites" / "island.csv")
    sure = float(np.max(found.values, axis=1).mean())
    print(f"the island's own model is {folder / 'island.safetensors'}; mean probability of its answers {sure:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-hospitals"))
