"""fedekd export: give a site its private model, with a model card."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fedekd.commands.parser import add_chosen_by, command


def add(commands: Any) -> None:
    export = command(commands, "export", export_model, "give a site its private model, with a model card")
    export.add_argument("folder", metavar="DIR", help="the --out folder of a run")
    export.add_argument("--client", required=True, metavar="NAME", help="whose model: a client's name in the tables")
    export.add_argument("--to", required=True, metavar="FILE", help="model.safetensors or model.onnx")
    export.add_argument(
        "--method",
        metavar="NAME",
        help="the method, or alone: the best model the client trained alone (default: fedekd, or the only one)",
    )
    export.add_argument("--seed", type=int, metavar="N", help="the seed of the run (default: the first)")
    export.add_argument("--private", metavar="NAME", help="your own private model, package.module:function (for .onnx)")
    export.add_argument("--proxy", metavar="NAME", help="your own proxy model, if predictions use it (for .onnx)")
    export.add_argument(
        "--with-rows", action="store_true", help="allow a model that predicts from training rows and so contains them"
    )
    add_chosen_by(export)


def export_model(given: argparse.Namespace) -> None:
    from pathlib import Path

    from fedekd.export.card import card_path, verdict
    from fedekd.export.export import export, holding
    from fedekd.runs.store import read_records

    metadata = export(
        given.folder,
        given.client,
        given.to,
        method=given.method,
        seed=given.seed,
        private=given.private,
        proxy=given.proxy,
        with_rows=given.with_rows,
        chosen_by=given.chosen_by,
    )
    if metadata.keeps_rows:
        print(
            f"{given.to} holds training rows of client {metadata.client}: guard it as you guard those", file=sys.stderr
        )
    card = card_path(Path(given.to))
    print(f"client {metadata.client}, {metadata.method}, seed {metadata.seed}: {given.to}, its model card {card}")
    records = read_records(Path(given.folder) / "results.jsonl", given.chosen_by)
    print(verdict(metadata, holding(records, metadata), Path(given.folder)))
