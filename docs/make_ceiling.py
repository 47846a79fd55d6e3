"""What the four hospitals would gain if they could share their rows: a ceiling for every way to federate.

    python docs/make_ceiling.py [--seeds 100]

Logistic regression for each hospital, on its own training rows and on those of the others at several weights, with an
intercept of its own. The ridge and the weight are the best of all on the very test rows, so that what sharing gives is
rather too much than too little.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
from sklearn.linear_model import LogisticRegression

from fedekd import metrics
from fedekd.data import federate, load_dataset
from fedekd.federation import Federation

RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # scikit-learn's C: the smaller, the stronger
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # of another hospital's row, where an own one has 1
OWN = 3.0  # what marks an own row: large, so that the ridge hardly holds the intercept back


def main() -> None:
    parser = argparse.ArgumentParser(description="what the four hospitals would gain by sharing their rows")
    parser.add_argument("--seeds", type=int, default=100)
    seeds = range(parser.parse_args().seeds)
    heart = load_dataset("heart")
    federations = [federate(heart, seed=seed) for seed in seeds]
    found = {
        (ridge, weight): np.array([list(accuracies(federation, ridge, weight)) for federation in federations])
        for ridge, weight in itertools.product(RIDGES, WEIGHTS)
    }  # [seeds, hospitals]
    alone = max((key for key in found if key[1] == 0), key=lambda key: found[key].mean())
    shared = max(found, key=lambda key: found[key].mean())
    for what, key in (("alone", alone), ("with the others' rows", shared)):
        print(f"{what}: {100 * found[key].mean():.2f} % (C {key[0]}, their weight {key[1]})")
    gains = 100 * (found[shared] - found[alone])
    low, high = metrics.paired_interval(gains.mean(1)) or (np.nan, np.nan)
    print(f"sharing the rows gives {gains.mean():+.2f} points [{low:+.2f}, {high:+.2f}]")
    print(", ".join(f"{name} {gain:+.2f}" for name, gain in zip(heart.site_names, gains.mean(0), strict=True)))


def accuracies(federation: Federation, ridge: float, weight: float) -> Iterator[float]:
    """On each hospital's test rows."""
    x, y = federation.dataset.x * federation.gain + federation.shift, federation.dataset.y
    for k, own in enumerate(federation.clients):
        others = [other.train for other in federation.clients[:k] + federation.clients[k + 1 :]]
        rows = np.concatenate([own.train, *others]) if weight else own.train
        mine = np.isin(rows, own.train)
        model = LogisticRegression(C=ridge, max_iter=500)
        model.fit(np.column_stack([x[rows], OWN * mine]), y[rows], np.where(mine, 1.0, weight))
        yield float((model.predict(np.column_stack([x[own.test], np.full(len(own.test), OWN)])) == y[own.test]).mean())


if __name__ == "__main__":
    main()
