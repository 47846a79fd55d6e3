from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedekd.errors import FedekdError
from fedekd.flower.settings import Privacy, ServerSettings, SiteSettings, read_server, read_site
from fedekd.flower.setup.check import check_method
from fedekd.flower.toml_files import toml_text, toml_value

SITE = {"name": "north", "server": "fed.example.org:8000", "ca": "ca.crt", "key": "k", "state": "s", "data": "digits"}
SERVER = {
    "address": "fed.example.org:8000", "ca": "ca", "certificate": "c", "key": "k", "nodes": "nodes", "state": "state",
}  # fmt: skip


def written(folder: Path, cls: type, values: dict[str, Any]) -> Path:
    path = folder / "file.toml"
    path.write_text(toml_text(cls, "A file.", values))
    return path


def test_a_written_site_reads_back(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()
    more = {"data": "rows.csv", "target": 'the "outcome"\\ö', "share": (), "threads": 3, "dp": {"epsilon": 2}}
    site = read_site(written(tmp_path, SiteSettings, {**SITE, **more}))
    assert site.state == tmp_path / "s"
    assert site.data == str(tmp_path / "rows.csv")
    assert (site.target, site.share, site.threads, site.local) == ('the "outcome"\\ö', (), 3, "train")
    assert site.dp == Privacy(epsilon=2.0, delta=1e-5, clip=1.0)


def test_the_privacy_that_a_file_shows_is_whole(tmp_path: Path) -> None:
    text = written(tmp_path, SiteSettings, SITE).read_text()
    shown = text[text.index("# [dp]") :].splitlines()[1:]
    assert [line.split()[1] for line in shown] == [field.name for field in fields(Privacy)]


def test_a_site_of_defaults_keeps_them(tmp_path: Path) -> None:
    site = read_site(written(tmp_path, SiteSettings, SITE))
    assert (site.data, site.task, site.private, site.dp) == ("digits", None, None, None)
    assert site.share == ("n", "metric", "delta", "verdict")
    assert site.alone == "menu"


def test_a_written_server_reads_back(tmp_path: Path) -> None:
    more = {"method": "fedprox", "parameters": {"mu": 0.5}, "rounds": 7, "combine": "median", "proxy": "a.b:c"}
    server = read_server(written(tmp_path, ServerSettings, {**SERVER, **more, "min_sites": 3}))
    assert (server.method, server.parameters, server.rounds) == ("fedprox", {"mu": 0.5}, 7)
    assert (server.combine, server.proxy, server.nodes) == ("median", "a.b:c", tmp_path / "nodes")
    check_method(server, "server.toml")


def test_every_key_is_explained(tmp_path: Path) -> None:
    for cls in (SiteSettings, ServerSettings):
        lines = toml_text(cls, "A file.", {}).splitlines()
        for name in cls.__dataclass_fields__:
            at = next(i for i, line in enumerate(lines) if line.lstrip("# ").startswith((f"{name} =", f"[{name}]")))
            assert lines[at - 1].startswith("# "), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": "x"}, "unknown key in .* 'nam'; did you mean 'name'"),
        ({"name": "../x"}, "a site's name"),
        ({"name": 3}, "name must be a text in quotes, got 3"),
        ({"server": "fed.example.org"}, "server must look like fed.example.org:8000"),
        ({"server": "fed:99999"}, "server must look like"),
        ({"port": 70000}, "port must be at most 65535"),
        ({"port": "9"}, "port must be a whole number"),
        ({"threads": True}, "threads must be a whole number"),
        ({"share": ["n", "rows"]}, "unknown share 'rows'"),
        ({"share": "n"}, "share must be a list of texts"),
        ({"task": "clustering"}, "unknown task 'clustering'"),
        ({"give_up": 0}, "give_up must be at least 1"),
        ({"dp": 1}, r"dp must be a table \[dp\]"),
        ({"dp": {"delta": 1e-5}}, "dp.epsilon is missing"),
        ({"dp": {"epsilon": -1}}, r"\[dp\] needs epsilon > 0"),
        ({"data": ""}, "data must be a text"),
    ],
)
def test_a_wrong_site_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "site.toml"
    flat = {**SITE, **{key: value for key, value in change.items() if not isinstance(value, dict)}}
    lines = [f"{name} = {toml_value(value)}" for name, value in flat.items()]
    for table, values in ((k, v) for k, v in change.items() if isinstance(v, dict)):
        lines += [f"[{table}]", *(f"{name} = {value}" for name, value in values.items())]
    path.write_text("\n".join(lines))
    with pytest.raises(FedekdError, match=message) as error:
        read_site(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", sorted(SERVER))
def test_a_missing_key_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text("\n".join(f'{key} = "{value}"' for key, value in SERVER.items() if key != missing))
    with pytest.raises(FedekdError, match=f"{missing} is missing; it is: "):
        read_server(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compression": "zip"}, "unknown compression 'zip'"),
        ({"combine": "median", "weighting": "samples"}, "combine = 'median' knows no weights"),
        ({"combine": "krum", "min_sites": 2}, "combine = 'krum' cannot tell .* set min_sites to 3 or more, got 2"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"lr": 0.0}, "lr must be a number > 0"),
        ({"address": "nowhere"}, "address must look like"),
        ({"give_up": 200.0, "deadline": 60.0}, "give_up must be at least 240 s, got 200"),
    ],
)
def test_a_wrong_server_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FedekdError, match=message):
        read_server(written(tmp_path, ServerSettings, {**SERVER, **change}))


@pytest.mark.parametrize("change", [{"method": "fedkd"}, {"parameters": {"bta": 1}}])
def test_a_wrong_method_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    server = read_server(written(tmp_path, ServerSettings, {**SERVER, **change}))
    with pytest.raises(FedekdError, match=r"server\.toml: unknown (method|parameter)"):
        check_method(server, "server.toml")


def test_what_is_no_toml_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("name = ")
    with pytest.raises(FedekdError, match="not valid TOML"):
        read_site(path)
    with pytest.raises(FedekdError, match="cannot read"):
        read_site(tmp_path / "none.toml")
    with pytest.raises(FedekdError, match=r"is a folder; name the file in it: .*site\.toml$"):
        read_site(tmp_path)


def test_the_file_of_the_other_side_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(FedekdError, match="holds the settings of a site, for `fedekd site`; name the other"):
        read_server(written(tmp_path, SiteSettings, SITE))
    with pytest.raises(FedekdError, match="holds the settings of a server, for `fedekd server`; name the other"):
        read_site(written(tmp_path, ServerSettings, SERVER))
