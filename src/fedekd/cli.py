"""The command line: which commands there are, and how it ends when something goes wrong."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Sequence

from fedekd import __version__
from fedekd.commands import (
    data,
    export,
    federation,
    figures,
    methods,
    models,
    predict,
    report,
    run,
    server,
    site,
    study,
    table,
    tune,
    watch,
)
from fedekd.commands.parser import Parser
from fedekd.errors import FedekdError

COMMANDS = (
    run,
    tune,
    study,
    watch,
    table,
    report,
    figures,
    export,
    predict,
    methods,
    models,
    data,
    site,
    server,
    federation,
)
ABOUT = "Federated learning that tells each site whether joining was worth it."
EXAMPLES = """examples:
  fedekd run                                    FedeKD against Local and FedAvg on digits
  fedekd run --methods paper --alpha 0.5 --seeds 0-9
  fedekd run --dataset patients.csv --target outcome --clients-from hospital
  fedekd run --methods fedekd,fedprox --set fedprox.mu=0.1 --beta 2
  fedekd watch fedekd-results                   in another terminal, while it runs
  fedekd data show digits --alpha 0.1"""


def make_parser() -> Parser:
    top = Parser(prog="fedekd", description=ABOUT, epilog=EXAMPLES)
    top.add_argument("--version", action="version", version=f"fedekd {__version__}")
    top.set_defaults(act=None, parser=top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for each in COMMANDS:
        each.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for what a user can mend, said in one line; 130 when interrupted. Bugs keep their traceback."""
    codecs.register_error("fedekd", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="fedekd")
    with contextlib.suppress(OSError):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # so that --private models:make finds models.py here
    try:
        try:
            return _answer(argv)
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except FedekdError as error:
        return _complain(str(error))
    except KeyboardInterrupt as stop:
        print("; ".join(["interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        _abandon_output()
        return 1
    except OSError as error:
        _abandon_output()
        return _complain(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _complain("out of memory; try a smaller --batch-size, fewer --clients or less data")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """For a terminal that lacks some letters: where there is no Δ a ? will do, but a minus must stay one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join("-" if letter == "−" else "?" for letter in error.object[error.start : error.end]), error.end


def _answer(argv: Sequence[str] | None) -> int:
    given, rest = make_parser().parse_known_args(argv)
    if rest:
        given.parser.refuse(rest)
    given.words = list(sys.argv[1:] if argv is None else argv)
    if given.act:
        given.act(given)
    else:
        given.parser.print_help()
    return 0


def _complain(text: str) -> int:
    line = " ".join(text.split())
    print("fedekd:", "".join(c if c.isprintable() else "?" for c in line), file=sys.stderr)
    return 2


def _abandon_output() -> None:
    """Keep Python from trying, and failing, to write the rest when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
