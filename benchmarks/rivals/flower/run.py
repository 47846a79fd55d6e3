"""The FedAvg job on Flower's simulation, two clients at a time on two cores.

    python benchmarks/rivals/flower/run.py cli --data FILE          `flwr run`, as Flower's documentation says
    python benchmarks/rivals/flower/run.py in-process --data FILE   `run_simulation`: deprecated, but cheaper

`flwr run` leaves a SuperLink behind, which this script does not stop: measure.py does, and counts it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import job

HERE = Path(__file__).resolve().parent


def environment(spec: job.Spec, home: Path) -> dict[str, str]:
    """Its own home and ports, so that nobody else's SuperLink does this job's work."""
    return {
        **os.environ,
        job.ENVIRONMENT: spec.dump(),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def with_cli() -> int:
    simulation = f"num-supernodes={job.CLIENTS} client-resources-num-cpus=1 init-args-num-cpus={cores()}"
    command = [str(Path(sys.executable).parent / "flwr"), "run", str(HERE), "local", "--stream"]
    return subprocess.run([*command, "--federation-config", simulation], check=False).returncode


def in_process() -> None:
    from client_app import app as client_app
    from flwr.simulation import run_simulation
    from server_app import app as server_app

    resources = {"init_args": {"num_cpus": cores()}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server_app, client_app, num_supernodes=job.CLIENTS, backend_config=resources)


if __name__ == "__main__":
    args, spec = job.parse(how=("cli", "in-process"))
    with tempfile.TemporaryDirectory(prefix="flwr-") as home:
        os.environ.update(environment(spec, Path(home)))
        sys.exit(with_cli() if args.how == "cli" else in_process())
