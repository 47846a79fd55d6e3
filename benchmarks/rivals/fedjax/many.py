"""The job of many_peers.py on FedJAX: its federated averaging, its sampler, each client's steps compiled by XLA.

python benchmarks/rivals/fedjax/many.py --clients 1000 --present 100 --rounds 3
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import many_job
import numpy as np
from fedjax.algorithms import fed_avg


def forward(batch) -> jnp.ndarray:
    x = batch["x"]
    start = hk.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")  # torch's own, so that losses can be compared
    for width in many_job.WIDTHS:
        x = hk.Conv2D(width, 3, padding="SAME", w_init=start)(x)
        x = hk.max_pool(jax.nn.relu(x), (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(hk.Linear(many_job.HIDDEN, w_init=start)(hk.Flatten()(x)))
    return hk.Linear(many_job.CLASSES, w_init=start)(x)


def main() -> None:
    options = many_job.parse()
    data = many_job.ManyData(options.clients)
    trained = 0

    def images(batch):
        rows = batch["rows"]
        return {"x": many_job.scaled(data.x[rows])[..., None], "y": data.y[rows]}

    one = {"x": np.zeros((1, many_job.SIDE, many_job.SIDE, 1), np.float32), "y": np.zeros(1, np.int64)}
    model = fedjax.create_model_from_haiku(
        hk.transform(forward), one, lambda batch, found: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], found)
    )
    users = fedjax.InMemoryFederatedData(
        {f"{k:06d}".encode(): {"rows": rows} for k, rows in enumerate(data.rows)},
        preprocess_batch=fedjax.BatchPreprocessor([images]),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(users, options.present, seed=0)
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.adam(many_job.LR, eps=1e-8),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=many_job.BATCH, num_epochs=1, drop_remainder=False),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def perform() -> None:
        nonlocal state, trained
        clients = sampler.sample()
        trained += sum(len(rows) for _, rows, _ in clients)
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    rounds = many_job.timed(options.rounds, perform)
    test = {"x": many_job.scaled(data.test_x)[..., None], "y": data.test_y}
    loss = float(jnp.mean(model.train_loss(test, model.apply_for_eval(state.params, test))))
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(state.params))
    versions = {"jax": jax.__version__, "fedjax": version("fedjax")}
    many_job.report(rounds, parameters, trained, loss, **versions)


if __name__ == "__main__":
    main()
