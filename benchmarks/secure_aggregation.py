"""What secure aggregation costs beside the training: bytes and seconds of one round, and of Flower's SecAgg+.

    python benchmarks/secure_aggregation.py [--sites 4 10] [--numbers 10000 1000000]

Both in this process, without TLS and without training: every site does its part of one round, one after the other, and
the server unmasks the sum, with all sites there and with one that drops out after it has shared its keys. Bytes are
those of the messages' contents, per site; a plain upload has 4 bytes a number. Flower's half is its own workflow
(``SecAggPlusWorkflow`` and ``secaggplus_mod``) over a grid that hands messages over. Needs fedekd[flower]. Writes
benchmarks/results/secure_aggregation.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedekd import __version__
from fedekd.flower.protocol import masking
from fedekd.flower.protocol.masking import Occasion, SignedKeys
from fedekd.flower.protocol.messages import MaskingRequest, masking_text
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import visits
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.settings import SiteSettings
from fedekd.flower.setup.keys import make_node_key
from fedekd.flower.site.masks import SiteMasks

HERE = Path(__file__).resolve().parent
NOWHERE = Path("nowhere")


# --- fedekd ---------------------------------------------------------------------------------------------------------


def ours(count: int, numbers: int, dropped: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fedekd-bench-") as place:
        return _ours(Path(place), count, numbers, dropped)


def _ours(folder: Path, count: int, numbers: int, dropped: int) -> dict[str, Any]:
    names = [f"site{number}" for number in range(count)]
    (folder / "peers").mkdir()
    for name in names:
        make_node_key(folder / name).rename(folder / "peers" / f"{name}.pub")
        (folder / f"{name} state").mkdir()
    terms, occasion = Terms.usual(), Occasion("f" * 16, 0, "a" * 16)
    visit = visits(terms.make_method(), 1)[0]
    weights = {
        name: np.random.default_rng(k).normal(0, 0.1, numbers).astype(np.float32) for k, name in enumerate(names)
    }
    held = {"proxy": {"w": torch.zeros(numbers)}}
    taken, up, down = Counter[str](), Counter[str](), Counter[str]()

    def masks(name: str, stage: str, given: dict[str, bytes]) -> tuple[SiteMasks, MaskingRequest]:
        files: dict[str, Any] = dict.fromkeys(("ca", "state"), NOWHERE)
        site = SiteSettings(name=name, server="", data="", key=folder / name, peers=folder / "peers", **files)
        asked = MaskingRequest(occasion.federation, occasion.visit, occasion.attempt, stage, given)
        return SiteMasks(site, folder / f"{name} state", terms, asked), asked

    def ask(name: str, stage: str, given: dict[str, bytes]) -> dict[str, bytes]:
        start = time.perf_counter()
        one, asked = masks(name, stage, given)
        answer = one.answer(asked)
        taken["site"] += time.perf_counter() - start  # type: ignore[assignment]
        up["masking"] += len(masking_text(answer))
        down["masking"] += len(masking_text(given))
        return answer

    keys = {name: ask(name, "keys", {})[name] for name in names}
    sealed = {name: ask(name, "shares", keys) for name in names}
    stay, uploads = names[dropped:], []
    for name in stay:
        start = time.perf_counter()
        one, _ = masks(name, "keys", {})
        given = {other: sealed[other][name] for other in names if other != name}
        one.receive(given)
        reply = one.masked(Payload({}, {"proxy": Packed("none", {"w": weights[name]})}), visit, held, "given")
        taken["site"] += time.perf_counter() - start  # type: ignore[assignment]
        down["masking"] += len(masking_text(given))
        uploads.append(reply.models["proxy"].arrays["masked"])
    named = dict.fromkeys(stay, b"")
    signatures = {name: ask(name, "confirm", named)[name] for name in stay}
    shares = [ask(name, "reveal", signatures) for name in stay]
    start = time.perf_counter()
    needed = masking.threshold(terms.mask_threshold, count)
    secret = {name: masking.put_together([given[name] for given in shares[:needed]]) for name in names}
    total = np.sum(uploads, axis=0, dtype=np.uint32)
    public = {name: SignedKeys.parse(content) for name, content in keys.items()}
    gone = {name: secret[name] for name in names if name not in stay}
    found = masking.unmask(total, occasion, public, {name: secret[name] for name in stay}, gone, "given")
    mean = masking.mean_of(found, len(stay), terms.mask_limit, count)
    server = time.perf_counter() - start
    error = float(np.abs(mean - np.mean([weights[name] for name in stay], axis=0, dtype=np.float64)).max())
    return {
        "upload": uploads[0].nbytes,
        "more_up": round(up["masking"] / count),
        "more_down": round(down["masking"] / count),
        "site_seconds": round(taken["site"] / count, 4),
        "server_seconds": round(server, 4),
        "largest_error": error,
    }


# --- Flower -----------------------------------------------------------------------------------------------------------


def flower(count: int, numbers: int, dropped: int) -> dict[str, Any]:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # which a ServerApp's process would have
    logging.getLogger("flwr").setLevel(logging.ERROR)
    nodes = list(range(1, count + 1))
    weights = {k: np.random.default_rng(k - 1).normal(0, 0.1, numbers).astype(np.float32) for k in nodes}
    context = {k: Context(1, k, {}, RecordDict(), {}) for k in nodes}
    up, down, stages = Counter[int](), Counter[int](), 0
    taken = 0.0

    def size(content: RecordDict) -> int:
        def bytes_of(value: Any) -> int:
            if isinstance(value, (list, tuple)):
                return sum(map(bytes_of, value))
            return len(value) if isinstance(value, (bytes, str)) else 8

        records = sum(bytes_of(value) for one in content.config_records.values() for value in one.values())
        return records + sum(len(a.data) for one in content.array_records.values() for a in one.values())

    def fit(message: Message, ctxt: Context) -> Message:
        status = Status(Code.OK, "")
        result = FitRes(status, ndarrays_to_parameters([weights[ctxt.node_id]]), 1, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)

    class Handing:
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            nonlocal stages, taken
            answers = []
            for message in messages:
                node = message.metadata.dst_node_id
                if stages >= 2 and node <= dropped:
                    continue
                given = message.content.items()
                own = RecordDict({n: ConfigRecord(dict(r)) if isinstance(r, ConfigRecord) else r for n, r in given})
                down[stages] += size(own)
                asked = Message(own, node, message.metadata.message_type)
                start = time.perf_counter()
                answer = secaggplus_mod(asked, context[node], fit)
                taken += time.perf_counter() - start
                up[stages] += size(answer.content)
                answer.metadata.__dict__["_src_node_id"] = node
                answers.append(answer)
            stages += 1
            return answers

    class Proxy:
        def __init__(self, node: int) -> None:
            self.node_id, self.cid = node, str(node)

    class Strategy:
        mean: Any = None

        def configure_fit(self, *_: Any) -> Any:
            given = FitIns(ndarrays_to_parameters([np.zeros(numbers, np.float32)]), {})
            return [(Proxy(node), given) for node in nodes]

        def aggregate_fit(self, _: int, results: Any, __: Any) -> Any:
            self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
            return None, {}

    class Manager:
        def num_available(self) -> int:
            return count

    strategy: Any = Strategy()
    manager: Any = Manager()
    legacy = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=strategy, client_manager=manager)
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    zeros = ndarrays_to_parameters([np.zeros(numbers, np.float32)])
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(zeros, True)
    workflow = SecAggPlusWorkflow(count, count // 2 + 1, max_weight=1.0)
    start = time.perf_counter()
    grid: Any = Handing()
    workflow(grid, legacy)
    whole = time.perf_counter() - start
    stay = nodes[dropped:]
    error = float(np.abs(strategy.mean - np.mean([weights[k] for k in stay], axis=0, dtype=np.float64)).max())
    model = 4 * numbers
    return {
        "upload": round(up[2] / len(stay)),
        "more_up": round((up[0] + up[1] + up[3]) / count),
        "more_down": round((down[0] + down[1] + down[2] - len(stay) * model + down[3]) / count),
        "site_seconds": round(taken / count, 4),
        "server_seconds": round(whole - taken, 4),
        "largest_error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What secure aggregation costs.")
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000, 1_000_000])
    given = parser.parse_args()
    rows = []
    for warm_up in (ours, flower):
        warm_up(4, 10, 0)
    for count in given.sites:
        for numbers in given.numbers:
            for dropped in (0, 1):
                about = {"sites": count, "numbers": numbers, "dropped": dropped}
                for side, cost in (("fedekd", ours), ("flower", flower)):
                    rows.append({"side": side, **about, **cost(count, numbers, dropped)})
                    print(json.dumps(rows[-1]), flush=True)
    found = {"fedekd": __version__, "load": os.getloadavg()[0], "cores": os.cpu_count(), "rounds": rows}
    (HERE / "results" / "secure_aggregation.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
