"""The FedAvg job on pfl-research: one process, its simulated backend, its tensors-in-memory dataset.

python benchmarks/rivals/pfl/run.py --data FILE
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import job
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Classifier(torch.nn.Module):
    """The job's network with the two functions that pfl asks of a model."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return torch.nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        self.eval()
        hits = int((self.network(x).argmax(1) == y).sum())
        return {"accuracy": Weighted(hits, len(y))}


class Shuffled(PyTorchTensorDataset):
    """pfl's dataset in memory gives the same batches every epoch; the other sides draw new ones."""

    def iter(self, batch_size: int | None):
        for rows in torch.randperm(len(self)).split(batch_size or len(self)):
            yield [tensor[rows] for tensor in self.raw_data]


class OnlyTraining(FederatedAveraging):
    """pfl evaluates every client before and after its first training, which the other sides do not."""

    def get_next_central_contexts(self, *args, **kwargs):
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        if contexts is not None:
            contexts = tuple(replace(context, do_evaluation=False) for context in contexts)
        return contexts, model, metrics


def main(spec: job.Spec) -> None:
    arrays = job.load(spec.data)
    trained = 0

    sets = [Shuffled(job.samples(arrays, "train", k), user_id=str(k)) for k in range(job.CLIENTS)]

    def training(client: int) -> PyTorchTensorDataset:
        nonlocal trained
        trained += spec.epochs * len(sets[client])
        return sets[client]

    users = FederatedDataset(training, get_user_sampler("minimize_reuse", list(range(job.CLIENTS))))
    network = job.make_model(spec)
    classifier = Classifier(network)
    model = PyTorchModel(
        classifier,
        local_optimizer_create=functools.partial(job.make_optimizer, spec=spec),
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if spec.precision == "bf16" else None,
    )
    OnlyTraining().run(
        NNAlgorithmParams(
            central_num_iterations=spec.rounds,
            evaluation_frequency=spec.rounds,
            train_cohort_size=job.CLIENTS,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_batch_size=job.BATCH, local_num_epochs=spec.epochs, local_learning_rate=job.LR),
    )
    batch = NNEvalHyperParams(local_batch_size=job.EVALUATION_BATCH)
    tests = [PyTorchTensorDataset(job.samples(arrays, "test", k)) for k in range(job.CLIENTS)]
    scores = [model.evaluate(test, eval_params=batch) for test in tests]
    accuracies = [float(value.overall_value) for score in scores for _, value in score]
    job.report_job("pfl", spec, accuracies, network, trained, pfl=version("pfl"))


if __name__ == "__main__":
    main(job.parse()[1])
