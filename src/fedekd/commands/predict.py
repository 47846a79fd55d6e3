"""fedekd predict: use an exported model on new rows."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fedekd.commands.parser import command


def add(commands: Any) -> None:
    predict = command(commands, "predict", predict_rows, "use an exported model on new rows")
    predict.add_argument("model", metavar="MODEL", help="a .safetensors or .onnx file that `fedekd export` made")
    predict.add_argument("file", metavar="FILE", help="a table, an .npz with x, a picture or a folder of pictures")
    predict.add_argument("--out", metavar="FILE", help="a .csv file for the predictions (default: print them)")
    predict.add_argument(
        "--id", metavar="COLUMN", help="column of a table that names each row in the answer (default: its number)"
    )
    predict.add_argument("--private", metavar="NAME", help="your own private model, package.module:function")
    predict.add_argument("--proxy", metavar="NAME", help="your own proxy model, if predictions use it")
    predict.add_argument(
        "--method", metavar="NAME", help="your own method, package.module:Class, if it makes the predictions"
    )


def predict_rows(given: argparse.Namespace) -> None:
    from pathlib import Path

    from fedekd.export.predict import predict
    from fedekd.files import write_whole

    found = predict(
        given.model, given.file, private=given.private, proxy=given.proxy, method=given.method, named_by=given.id
    )
    if ignored := [column for column in found.ignored if column != given.id]:
        print(f"not used, since the model was not trained on them: {', '.join(ignored)}", file=sys.stderr)
    if given.out is None:
        print(found.text(), end="")
        return
    write_whole(Path(given.out), found.text().encode())
    print(f"{len(found.names)} predictions in {given.out}")
