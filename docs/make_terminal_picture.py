"""Draw docs/terminal.svg: what ``fedekd run`` prints. Run it from the repository; finished runs are not repeated."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

import fedekd
from fedekd.report.terminal import print_result
from fedekd.settings import Settings

if __name__ == "__main__":
    result = fedekd.run()
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "dim"), ("fedekd run", "bold")))
    print_result(console, result, Settings().out)
    picture = Path(__file__).parent / "terminal.svg"
    drawing = console.export_svg(title="fedekd run", unique_id="terminal")
    picture.write_text(re.sub(r"@font-face {.*?}\s*", "", drawing, flags=re.DOTALL))  # load no fonts from the net
    print(f"drew {picture}")
