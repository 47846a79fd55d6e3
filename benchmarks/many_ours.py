"""The job of many_peers.py on fedekd: the engine that `fedekd run` takes, or the one that it does not.

    python benchmarks/many_ours.py --clients 1000 --present 100 --rounds 3 [--setting stacked]

Rounds of the engine alone are timed: no checkpoints, no records and no Local to compare with.
"""

from __future__ import annotations

from importlib.metadata import version

import many_job
import numpy as np
import torch

from fedekd import methods, models
from fedekd.data import Dataset, Split
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.federation import Federation


def main() -> None:
    options = many_job.parse()
    torch.set_num_threads(1)
    data = many_job.ManyData(options.clients)
    dataset = Dataset("many", "classification", data.x[:, None], data.y, many_job.CLASSES)
    few = np.arange(4)
    splits = tuple(Split(rows, few, few) for rows in data.rows)
    names = tuple(str(k) for k in range(options.clients))
    shift, gain = np.asarray(-1, np.float32), np.asarray(1 / 127.5, np.float32)
    federation = Federation(dataset, splits, names, {"kind": "iid", "alpha": None}, shift, gain, 0.0, 1.0)
    share = options.present / options.clients
    training = Training(options.rounds, 1, many_job.BATCH, many_job.LR, participation=share)
    job = Job(federation, methods.get("fedavg"), 0, training)
    engine = Stacked([job]) if options.setting == "stacked" else Serial(job)
    rounds = many_job.timed(options.rounds, engine.round)
    server = engine.server if isinstance(engine, Serial) else engine.exchange.servers[0]
    network = models.private((1, many_job.SIDE, many_job.SIDE), many_job.CLASSES)
    (weights,) = server.sent.values()
    network.load_state_dict(weights)
    with torch.no_grad():
        x, y = torch.from_numpy(many_job.scaled(data.test_x))[:, None], torch.from_numpy(data.test_y)
        loss = float(torch.nn.functional.cross_entropy(network(x), y))
    parameters = sum(weight.numel() for weight in network.parameters())
    versions = {"torch": torch.__version__, "fedekd": version("fedekd")}
    many_job.report(rounds, parameters, job.work(), loss, **versions)


if __name__ == "__main__":
    main()
