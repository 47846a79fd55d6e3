"""Seconds and bytes per round of a real federation on this machine, and what packing the proxy costs.

    python benchmarks/deployment.py [--sites 3 6] [--pixels 8 28] [--rounds 4] [--skip-compression] [--skip-plain]

Server and sites are processes of their own, with TLS and node keys, on digits: as they are, 8 x 8, for which the proxy
is tiny, and enlarged to 28 x 28, for which it is the one of FashionMNIST in the paper. All of a site's traffic passes
a counting door, so the bytes are those that TCP carried, polling and TLS included; beside them stand the bytes of the
messages alone, as Flower serialises them. Plain Flower sends the private model by FedAvg, started as its
documentation says. Needs fedekd[flower]. Writes benchmarks/results/deployment.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from counting import Counter

from fedekd import __version__, models
from fedekd.data import load_dataset
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server import control
from fedekd.flower.server.control import admit
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import ServerSettings, SiteSettings, read_server, read_site
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.site import handlers
from fedekd.flower.supervise.demo import deal_digits
from fedekd.flower.supervise.processes import Child, command, environment, free_port, stopping

HERE = Path(__file__).resolve().parent
TRAINING = {"epochs": 2, "batch_size": 32, "lr": 1e-3}
LIMIT = 1500.0  # seconds for one federation


# --- one federation of processes --------------------------------------------------------------------------------


def prepare(folder: Path, count: int, rounds: int, pixels: int = 8) -> tuple[Path, list[Path], list[Counter]]:
    """Server and sites with digits dealt out to them, each site behind a door that counts."""
    port = free_port()
    here = {"listen": "127.0.0.1", "min_sites": count, "deadline": 600.0, "give_up": 1500.0, "rounds": rounds}
    init_server(folder / "server", f"localhost:{port}", settings={**here, **TRAINING})
    x, y, parts = deal_digits(count)
    nearest = np.arange(pixels) * x.shape[1] // pixels
    x = x[:, nearest][:, :, nearest]
    np.savez(folder / "all.npz", x=x, y=y)
    Schema.of(load_dataset(folder / "all.npz")).write(folder / "server" / "schema.json")
    sites, doors = [], []
    for number, rows in enumerate(parts):
        name, door = f"site{number}", Counter(port)
        doors.append(door)
        own = {"data": "rows.npz", "port": free_port(), "threads": 1, "give_up": 600.0, "alone": "plain"}
        ca = str(folder / "server" / "certificates" / "ca.crt")
        init_site(folder / name, name, f"localhost:{door.port}", "digits", ca=ca, settings=own)
        np.savez(folder / name / "rows.npz", x=x[rows], y=y[rows])
        shutil.copy(folder / name / "keys" / f"{name}.pub", folder / "server" / "nodes")
        sites.append(folder / name / "site.toml")
    return folder / "server" / "server.toml", sites, doors


def ours(count: int, rounds: int, pixels: int) -> dict[str, Any]:
    """fedekd: seconds between the ends of visits, bytes per site and round."""
    with tempfile.TemporaryDirectory(prefix="fedekd-bench-") as place:
        folder = Path(place)
        server, sites, doors = prepare(folder, count, rounds, pixels)
        children: list[Child] = []
        with stopping(children):
            children.append(Child("server", command("fedekd", "server", "run", str(server)), folder / "server.out"))
            for site in sites:
                run = command("fedekd", "site", "run", str(site))
                children.append(Child(site.parent.name, run, site.with_name("out")))
            marks = watch(folder / "server" / "state" / "log", children[0], doors)
        report = json.loads((folder / "server" / "state" / "report.json").read_text())
        assert report["complete"], report
    return {
        **between(marks, count, rounds),
        "message_bytes_up": report["bytes_up"] / count / rounds,
        "message_bytes_down": report["bytes_down"] / count / rounds,
    }


def watch(log: Path, server: Child, doors: list[Counter]) -> list[tuple[float, int, int]]:
    """Time and bytes so far at the end of each visit."""
    end, marks = time.monotonic() + LIMIT, []
    while True:
        code = server.code
        seen = log.read_text().count(": site") if log.exists() else 0
        while len(marks) < seen:
            marks.append((time.monotonic(), sum(d.up for d in doors), sum(d.down for d in doors)))
        if code is not None:
            if code:
                raise RuntimeError("\n".join(server.lines()[-20:]))
            return marks
        if time.monotonic() > end:
            raise TimeoutError("\n".join(server.lines()[-20:]))
        time.sleep(0.05)


def between(marks: list[tuple[float, int, int]], sites: int, rounds: int) -> dict[str, Any]:
    """A round lies between the ends of two visits; the last visit sends no model and is left out."""
    marks = marks[:rounds]
    spans = [b[0] - a[0] for a, b in pairwise(marks)]
    steps = max(1, len(spans))
    return {
        "seconds_per_round": sum(spans) / steps,
        "seconds": spans,
        "tcp_bytes_up": (marks[-1][1] - marks[0][1]) / steps / sites,
        "tcp_bytes_down": (marks[-1][2] - marks[0][2]) / steps / sites,
    }


# --- plain Flower -----------------------------------------------------------------------------------------------


def plain(count: int, rounds: int, pixels: int) -> dict[str, Any]:
    """FedAvg of the private model on the same rows, with Flower's own SuperLink and SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="flower-bench-") as place:
        folder = Path(place)
        file, sites, doors = prepare(folder, count, rounds, pixels)
        server = read_server(file)
        port = server.address.rpartition(":")[2]
        settings, out = folder / "settings.json", folder / "times.json"
        settings.write_text(json.dumps({"sites": count, "rounds": rounds, "pixels": pixels, "out": str(out)}))
        env = environment(folder / "home", HERE / "rivals" / "deployed")
        children: list[Child] = []
        with stopping(children):
            children.append(
                Child(
                    "superlink",
                    [
                        str(Path(sys.executable).with_name("flower-superlink")),
                        *("--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)),
                        *("--ssl-ca-certfile", str(server.ca), "--enable-supernode-auth"),
                        *("--database", str(folder / "link.db"), "--disable-runtime-dependency-installation"),
                        *("--host", "127.0.0.1", "--port", port),
                    ],
                    folder / "superlink.log",
                    env,
                )
            )
            until(lambda: reached(server), children, "SuperLink")
            with control.connected(server.address, server.ca) as superlink:
                admit(superlink, server.nodes)
            for path in sites:
                site = read_site(path)
                own = path.with_name("settings.json")
                own.write_text(json.dumps({"data": site.data, **TRAINING}))
                node = [
                    str(Path(sys.executable).with_name("flower-supernode")),
                    *("--superlink", site.server, "--root-certificates", str(site.ca)),
                    *("--auth-supernode-private-key", str(site.key), "--node-config", f'settings="{own}"'),
                    *("--host", "127.0.0.1", "--port", str(site.port)),
                ]
                children.append(Child(site.name, node, path.with_name("node.log"), {**env, "OMP_NUM_THREADS": "1"}))
            until(lambda: online(server) == count, children, "SuperNodes")
            before = sum(d.up for d in doors), sum(d.down for d in doors)
            began = time.time()
            with control.connected(server.address, server.ca) as superlink:
                superlink.submit({"server-file": str(settings)}, "plain_fedavg:server", "plain_fedavg:client")
            until(out.exists, children, "end of the run")
            after = sum(d.up for d in doors), sum(d.down for d in doors)
        ends = json.loads(out.read_text())["ends"]
    spans = [b - a for a, b in pairwise(ends)]
    return {
        "seconds_per_round": sum(spans) / len(spans),
        "seconds": spans,
        "seconds_first_round": ends[0] - began,
        "tcp_bytes_up": (after[0] - before[0]) / rounds / count,
        "tcp_bytes_down": (after[1] - before[1]) / rounds / count,
    }


def reached(server: ServerSettings) -> bool:
    try:
        online(server)
    except control.Unreachable:
        return False
    return True


def online(server: ServerSettings) -> int:
    with control.connected(server.address, server.ca) as superlink:
        return len(superlink.online())


def until(condition: Any, children: list[Child], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        dead = [child for child in children if child.code is not None]
        if dead or time.monotonic() > end:
            raise RuntimeError(f"no {what}: " + "\n".join((dead or children)[0].lines()[-20:]))
        time.sleep(0.2)


# --- what packing costs -----------------------------------------------------------------------------------------


class ByHand:
    """Payloads within this process: the same server and site code, without the network."""

    def __init__(self, sites: list[SiteSettings]) -> None:
        self.sites, self.answers = dict(enumerate(sites)), []

    def online(self) -> set[int]:
        return set(self.sites)

    admitted = online

    def send(self, node: int, kind: str, payload: Payload) -> None:
        self.answers.append((node, handlers.answer(self.sites[node], kind, payload)))

    def receive(self) -> list[tuple[int, Payload | None]]:
        found, self.answers = self.answers, []
        return found

    def forget(self) -> None:
        self.answers.clear()

    def wait(self, seconds: float) -> None: ...


def compression(seeds: int, rounds: int) -> dict[str, Any]:
    """Delta of three sites on digits, and bytes, whole and packed."""
    found: dict[str, Any] = {}
    for how in ("none", "fp16", "int8"):
        deltas, values, up, down = [], [], 0, 0
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="fedekd-bench-") as place:
                file, paths, doors = prepare(Path(place), 3, rounds)
                for door in doors:
                    door.close()
                server = replace(read_server(file), compression=how, seed=seed)
                schema = Schema.read(server.schema or "")
                report = Rounds(server, schema, ByHand([read_site(path) for path in paths]), 3).run()
            deltas += [site["delta"] for site in report["sites"]]
            values += [site["value"] for site in report["sites"]]
            up, down = up + report["bytes_up"], down + report["bytes_down"]
        messages = 3 * rounds * seeds
        found[how] = {
            "mean_delta": float(np.mean(deltas)),
            "worst_delta": float(np.min(deltas)),
            "deltas": deltas,
            "mean_accuracy": float(np.mean(values)),
            "bytes_up": up / messages,
            "bytes_down": down / messages,
        }
        print(f"{how}: mean delta {found[how]['mean_delta']:+.4f}, {up / messages:,.0f} bytes up a message", flush=True)
    return found


# --- all of it --------------------------------------------------------------------------------------------------


def serialised(role: str, pixels: int) -> tuple[int, int]:
    """Bytes of a model's tensors, and of the message that carries it as Flower puts it on the wire."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    make = models.BUILT_IN[role]
    packed, _ = wire.pack(make((1, pixels, pixels), 10).state_dict(), "none")
    payload = Payload({"code": 0, "name": "site0"}, {role: packed})
    size = sum(len(one.deflate()) for one in get_all_nested_objects(wire.to_records(payload)).values())
    return sum(array.nbytes for array in packed.arrays.values()), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--pixels", type=int, nargs="+", default=[8, 28])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3, help="of the comparison of packings")
    parser.add_argument("--skip-compression", action="store_true")
    parser.add_argument("--skip-plain", action="store_true")
    parser.add_argument("--out", default=str(HERE / "results" / "deployment.json"))
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/deployment.py", *sys.argv[1:]]),
        "date": datetime.now().strftime("%Y-%m-%d"),
        "fedekd": __version__,
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "rounds": given.rounds,
        **TRAINING,
        "federations": [],
    }
    for pixels in given.pixels:
        sizes = {"fedekd": serialised("proxy", pixels), "plain Flower FedAvg": serialised("private", pixels)}
        for count in given.sites:
            for name, (size, message) in sizes.items():
                if name != "fedekd" and given.skip_plain:
                    continue
                found = (ours if name == "fedekd" else plain)(count, given.rounds, pixels)
                what = {"pixels": pixels, "sites": count, "what": name, "model_bytes": size, "message_bytes": message}
                result["federations"].append({**what, **found})
                up, down = found["tcp_bytes_up"], found["tcp_bytes_down"]
                print(
                    f"{pixels} x {pixels}, {count} sites, {name}: {found['seconds_per_round']:.1f} s a round; per site "
                    f"{up:,.0f} bytes up and {down:,.0f} down by TCP for a model of {size:,}: "
                    f"{up / size - 1:+.1%} and {down / size - 1:+.1%}",
                    flush=True,
                )
    if not given.skip_compression:
        result["compression"] = compression(given.seeds, 10)
    Path(given.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
