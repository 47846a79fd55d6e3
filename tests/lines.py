"""Lines that a user is told: the one of an error, and the notes of a run."""

from __future__ import annotations

from fedekd.runs.observers import Observer


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


class Notes(Observer):
    def __init__(self):
        self.lines = []

    def on_note(self, event):
        self.lines.append(event.line)
