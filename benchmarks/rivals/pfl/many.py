"""The job of many_peers.py on pfl-research: one process, its simulated backend, each client's rows made when asked for.

python benchmarks/rivals/pfl/many.py --clients 1000 --present 100 --rounds 3 --setting tuned
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import many_job
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from run import Classifier, OnlyTraining, Shuffled, job


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.rounds = many_job.Rounds()

    def on_train_begin(self, *, model):
        self.rounds.begin()
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.rounds.end()
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


def main() -> None:
    options = many_job.parse()
    torch.set_num_threads(1)
    spec = job.Spec("", setting=options.setting)
    data = many_job.ManyData(options.clients)
    trained = 0

    def training(client: int) -> Shuffled:
        nonlocal trained
        rows = data.rows[client]
        trained += len(rows)
        x = torch.from_numpy(many_job.scaled(data.x[rows])).unsqueeze(1)
        return Shuffled((x, torch.from_numpy(data.y[rows])), user_id=str(client))

    users = FederatedDataset(training, get_user_sampler("minimize_reuse", list(range(options.clients))))
    network = job.make_model(spec)
    classifier = Classifier(network)
    model = PyTorchModel(
        classifier,
        local_optimizer_create=functools.partial(job.make_optimizer, spec=spec, lr=many_job.LR),
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    clock = Clock()
    OnlyTraining().run(
        NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds,
            train_cohort_size=options.present,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_batch_size=many_job.BATCH, local_num_epochs=1, local_learning_rate=many_job.LR),
        callbacks=[clock],
    )
    with torch.no_grad():
        x, y = torch.from_numpy(many_job.scaled(data.test_x)).unsqueeze(1), torch.from_numpy(data.test_y)
        loss = float(torch.nn.functional.cross_entropy(network(x), y))
    versions = {"torch": torch.__version__, "pfl": version("pfl")}
    many_job.report(clock.rounds, job.parameters(network), trained, loss, **versions)


if __name__ == "__main__":
    main()
