"""Messages as another machine could send them: honest ones, changed at random, the same for the same seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

TEXTS = (
    "",
    "x" * 100_000,
    "\x00\x1b[2J\nvisit 9 of 9",
    "9" * 400,
    "[" * 50_000,
    '{"a":' * 5_000,
    "NaN",
    "../../etc",
    "é",
)
WORDS: tuple[Any, ...] = (
    0, 1, -1, 2, 99, 2**63 - 1, -(2**63), 0.0, -0.5, 1e308, float("inf"), float("-inf"), float("nan"), True,
    b"bytes", [1, 2], [0.5], ["a"], *TEXTS,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**400, 1e308, float("inf"), float("nan"), "", "x" * 5000, [], {}, [[]], {"": None}, [[[[1]]]],
    "float32", "object", 2**63, "private",
)  # fmt: skip


def mutated(records: RecordDict, random: Random) -> RecordDict:
    """One to three changes of a copy."""
    found: dict[str, Any] = {name: dict(record) for name, record in records.items()}
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice((_other_word, _other_word, _other_json, _other_json, _other_text, _other_bytes))(found, random)
    kept = {name: record if not isinstance(record, dict) else ConfigRecord(record) for name, record in found.items()}
    return RecordDict(kept)


def _other_word(found: dict[str, Any], random: Random) -> None:
    words = _words(found)
    name = random.choice([*words, "more", "n", "privacy", "rounds", "delta"])
    if random.random() < 0.2:
        words.pop(name, None)
    elif random.random() < 0.05:
        words.update({f"word {k}": random.choice(WORDS) for k in range(5000)})
    else:
        words[name] = random.choice(WORDS)


def _other_json(found: dict[str, Any], random: Random) -> None:
    """A part of a word that is JSON becomes something else."""
    texts = {}
    for name, word in _words(found).items():
        try:
            texts[name] = json.loads(word)
        except (ValueError, TypeError, RecursionError):
            continue
    if texts:
        name = random.choice([*texts])
        _words(found)[name] = json.dumps(_replaced(texts[name], random))


def _replaced(value: Any, random: Random) -> Any:
    inner = [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
    if not inner or random.random() < 0.1:
        return random.choice(VALUES)
    place = random.choice(inner)
    if random.random() < 0.15:
        del value[place]
    elif random.random() < 0.1 and isinstance(value, list):
        value += value * random.choice((1, 50))
    else:
        value[place] = _replaced(value[place], random)
    return value


def _other_text(found: dict[str, Any], random: Random) -> None:
    words = _words(found)
    texts = [name for name, word in words.items() if isinstance(word, str) and word]
    if texts:
        name = random.choice(texts)
        start, end = sorted(random.randrange(len(words[name]) + 1) for _ in range(2))
        put = random.choice(("", "9" * 30, "-", "1e999", "NaN", '"', "\ud800".encode("utf-8", "replace").decode(), "]"))
        words[name] = words[name][:start] + put + words[name][end if random.random() < 0.3 else start + 1 :]


def _other_bytes(found: dict[str, Any], random: Random) -> None:
    pieces = [name for name in found if name.startswith("piece")]
    if not pieces:
        if random.random() < 0.2:
            found["piece 0"] = {"bytes": random.randbytes(random.randrange(100))}
        else:
            _other_word(found, random)
        return
    name = random.choice(pieces)
    content = found[name].get("bytes") if isinstance(found[name], dict) else None
    content = content if isinstance(content, bytes) else b""
    start = random.randrange(len(content) + 1)
    how = random.randrange(7)
    if how == 0:
        found[name] = {"bytes": content[:start]}
    elif how == 1:
        found[name] = {"bytes": content + random.randbytes(8)}
    elif how == 2:
        found[name] = {"bytes": content[:start] + random.randbytes(64) + content[start + 64 :]}
    elif how == 3:
        found[name] = {"bytes": b"\xff" * len(content)}  # NaN everywhere
    elif how == 4:
        found[f"piece {random.choice((1, 7, -1))}"] = found.pop(name)
    elif how == 5:
        found[name] = random.choice((ArrayRecord(), MetricRecord({"bytes": 1.5})))
    else:
        found[name] = {"bytes": random.choice(("text", 3, [1.5]))}


def _words(found: dict[str, Any]) -> dict[str, Any]:
    return found["words"]
