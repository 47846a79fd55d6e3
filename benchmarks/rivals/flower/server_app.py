"""The server: Flower's FedAvg over all clients, with one evaluation by the clients after the last round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.metadata import version

import job
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class EvaluatedAtTheEnd(FedAvg):
    def __init__(self, rounds: int) -> None:
        everyone = {"min_train_nodes": job.CLIENTS, "min_evaluate_nodes": job.CLIENTS}
        super().__init__(min_available_nodes=job.CLIENTS, evaluate_metrics_aggr_fn=self._keep, **everyone)
        self.rounds = rounds
        self.trained = 0
        self.accuracies: dict[int, float] = {}
        self.client_threads = 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed in round {server_round}: {reply.error.reason}")
        self.trained += sum(int(reply.content["metrics"]["num-examples"]) for reply in replies)
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round: int, *args, **kwargs) -> Iterable[Message]:
        return super().configure_evaluate(server_round, *args, **kwargs) if server_round == self.rounds else []

    def _keep(self, records: list[RecordDict], weight: str) -> MetricRecord:
        for record in records:
            metrics = record["metrics"]
            self.accuracies[int(metrics["client"])] = float(metrics["accuracy"])
            self.client_threads = int(metrics["threads"])
        return MetricRecord({"accuracy": sum(self.accuracies.values()) / len(self.accuracies)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    spec = job.Spec(**json.loads(os.environ[job.ENVIRONMENT]))
    model = job.make_model(spec)
    strategy = EvaluatedAtTheEnd(spec.rounds)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=spec.rounds)
    accuracies = [strategy.accuracies[client] for client in range(job.CLIENTS)]
    more = {"client_threads": strategy.client_threads, "flwr": version("flwr")}
    job.report_job("flower", spec, accuracies, model, strategy.trained * spec.epochs, **more)
