"""Settings files that lie, and settings that are lists of texts."""

from __future__ import annotations

import pytest

from fedekd.errors import FedekdError
from fedekd.settings import make_settings, read_toml


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 50_000, "nested too deep"),
        (".".join("a" * 5000) + " = 1", "nested too deep"),
        ("seeds = " + "9" * 5000, "is not valid TOML"),
        ("# " + "x" * (1 << 21), "far too much for settings"),
    ],
    ids=["brackets", "dots", "digits", "megabytes"],
)
def test_deep_or_huge_files(tmp_path, text, words):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(FedekdError, match=words) as error:
        read_toml(path)
    assert "\n" not in str(error.value)


def test_a_file_that_never_ends():
    with pytest.raises(FedekdError, match="it is not a file"):
        read_toml("/dev/zero")


def test_names_that_are_not_utf8_are_refused_before_anything_is_done():
    for name in ("out", "dataset"):
        with pytest.raises(FedekdError, match="is not UTF-8; rename"):
            make_settings({name: "./odd\udcff.csv"})


def test_lists_of_texts():
    assert make_settings({"drop": "a, b,a"}).drop == ("a", "b")
    assert make_settings({"drop": ["a, b"]}).drop == ("a, b",)
    assert make_settings({"na_values": ""}).na_values == ()
    assert make_settings({}).na_values is None
    for value in (5, [1], [["a"]]):
        with pytest.raises(FedekdError, match="drop must be texts"):
            make_settings({"drop": value})
    with pytest.raises(FedekdError, match="unknown missing 'median'"):
        make_settings({"missing": "median"})
