"""Progress in a notebook: one output that is updated in place. Needs no widgets."""

from __future__ import annotations

import time
from html import escape

from fedekd.report.progress import Watcher
from fedekd.units import count

EVERY = 0.5  # seconds at least between two updates
MOST_LINES = 20


class Notebook(Watcher):
    """A bar, what is being trained now, and the latest lines about what has ended."""

    def __init__(self, doing: str = "starting") -> None:
        super().__init__(doing)
        self.lines: list[str] = []
        self.handle, self.shown = None, 0.0

    def __enter__(self) -> Notebook:
        from IPython.display import display

        self.handle = display(self._bundle(), raw=True, display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.now = "stopped" if kind else self._tally()
        self.show()

    def show(self, urgent: bool = True) -> None:
        if urgent or time.monotonic() - self.shown > EVERY:
            self.shown = time.monotonic()
            if self.handle is not None:
                self.handle.update(self._bundle(), raw=True)

    def show_line(self, line: str) -> None:
        self.lines.append(line)
        self.show(urgent=False)

    def _tally(self) -> str:
        kept = f", {count(self.kept, 'run')} kept from earlier" if self.kept else ""
        return f"{count(self.finished, 'run')} trained{kept}"

    def _bundle(self) -> dict[str, str]:
        hidden = len(self.lines) - MOST_LINES
        earlier = [f"… {count(hidden, 'earlier line')}"] if hidden > 0 else []
        lines, left = [*earlier, *self.lines[-MOST_LINES:]], self.left()
        done, total = self.eta.done, self.eta.total
        now = f"{self.now} ({left})" if left else self.now
        share = f'value="{done}" max="{total}"' if total else 'value="1"' if self.runs else ""
        bar = f'<progress {share} style="width: 20em" aria-label="training"></progress>'
        text = f'<pre style="margin: 0">{escape(chr(10).join(lines))}</pre>' if lines else ""
        percent = f"{100 * done // total} % " if total else ""
        return {
            "text/html": f"{text}<div>{bar} {percent}{escape(now)}</div>",
            "text/plain": "\n".join([*lines, percent + now]),
        }
