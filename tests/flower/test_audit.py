"""The audit log tells what a site was asked and what left it, and no entry can be changed, taken out or cut off."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from test_site import payload
from village import Hand, federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.digests import digest
from fedekd.flower.settings import read_site
from fedekd.flower.setup.init import init_site
from fedekd.flower.site import audit
from fedekd.flower.site.audit import AUDIT, read_audit, record
from fedekd.flower.site.handlers import answer
from fedekd.flower.site.pins import Pins


def test_everything_that_leaves_is_in_it(tmp_path, digits):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain", share=("delta",))
    post = Hand(sites)
    federate(make_server(tmp_path, epochs=1), schema, sites, post)
    for site in sites:
        replies = [(kind, reply) for name, kind, reply in post.sent if name == site.name]
        entries = list(read_audit(site.state))
        assert [one["event"] for one in entries] == [kind for kind, _ in replies] == ["join", *["visit"] * 3, "end"]
        for entry, (_, reply) in zip(entries, replies, strict=True):
            assert entry["left"]["exchanged"] == [
                {"name": name, "bytes": sum(a.nbytes for a in one.arrays.values()), "sha256": digest(one.arrays)}
                for name, one in reply.models.items()
            ]
            assert {"code": 0, "name": site.name, **entry["left"]["numbers"]} == reply.words
            assert entry["answer"] == "done"
        assert json.loads(entries[0]["asked"]["terms"])["method"] == "fedekd"
        assert {one["agreed"] for one in entries} == {entries[0]["agreed"]}
        assert [one["name"] for one in entries[1]["left"]["exchanged"]] == ["proxy"]
        assert {"delta", "low", "high", "metric"} == set(entries[3]["left"]["numbers"])
        assert (site.state / AUDIT).stat().st_mode & 0o777 == 0o600
    received = [list(read_audit(site.state))[3]["received"] for site in sites]
    assert received[0] == received[1] == received[2], "all got the same final proxy, and its hash is kept"
    assert received[0][0]["name"] == "proxy"


def test_refusals_and_the_administrators_word_are_in_it(tmp_path, digits):
    schema, (site, *_) = schema_of(digits), write_sites(tmp_path, digits)
    answer(replace(site, leave=()), "join", payload(make_server(tmp_path), schema))
    answer(site, "visit", None)
    Pins(site.state).accept_schema(schema)
    refused, unread, accepted = read_audit(site.state)
    assert (refused["answer"], refused["left"]) == ("refused", {"numbers": {}, "exchanged": []})
    assert json.loads(refused["asked"]["terms"])["method"] == "fedekd"
    assert (unread["answer"], unread["asked"]) == ("fault", "a message that cannot be read")
    assert (accepted["event"], accepted["schema"], accepted["terms"]) == ("accept", schema.text(), None)


def test_nothing_leaves_that_cannot_be_logged(tmp_path, digits, caplog):
    schema, (site, *_) = schema_of(digits), write_sites(tmp_path, digits)
    (site.state / AUDIT).mkdir(parents=True)
    reply = answer(site, "join", payload(make_server(tmp_path), schema))
    assert reply.words == {"code": int(StatusCode.STATE), "name": site.name}
    assert "the audit log cannot be written, so nothing leaves" in caplog.text


@pytest.fixture
def log(tmp_path) -> Path:
    for k in range(5):
        record(tmp_path, "visit", visit=k)
    return tmp_path / AUDIT


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (lambda lines: [*lines[:2], lines[2].replace('"visit": 2', '"visit": 7'), *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], *lines[3:]], 3, "does not follow"),
        (lambda lines: [lines[0], *lines], 2, "does not follow"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1, "does not follow"),
        (lambda lines: [*lines[:4], "[]"], 5, "was changed"),
        (lambda lines: ["\x00", *lines], 1, "was changed"),
    ],
)
def test_a_change_is_found(log, change, line, what):
    assert len(list(read_audit(log.parent))) == 5
    log.write_text("\n".join(change(log.read_text().splitlines())) + "\n")
    with pytest.raises(FedekdError, match=rf"line {line}: this entry {what}"):
        list(read_audit(log.parent))


def test_an_entry_that_a_power_cut_broke_off_is_told(log):
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"number": 6, "ti')
    assert len(list(read_audit(log.parent))) == 5, "what it was about has not left"
    record(log.parent, "visit", visit=5)
    entries = list(read_audit(log.parent))
    assert [(one["event"], one.get("bytes")) for one in entries[5:]] == [("broken off", 17), ("visit", None)]
    log.write_bytes(log.read_bytes() + b"nonsense\n")
    with pytest.raises(FedekdError, match="is no entry: someone has changed it"):
        record(log.parent, "visit", visit=6)


def test_long_entries_and_many_writers(tmp_path):
    record(tmp_path, "join", terms="x" * (3 * audit.STEP))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.starmap(record, [(tmp_path, "visit")] * 40)
    assert len(list(read_audit(tmp_path))) == 41


def test_the_command(tmp_path, capsys):
    init_site(tmp_path / "north", "north", "fed.example.org:8000", "digits")
    file = str(tmp_path / "north" / "site.toml")
    state = read_site(file).state
    assert main(["site", "audit", file]) == 2
    assert "has not been asked anything yet" in capsys.readouterr().err
    assert main(["site", "key", file]) == 0
    early = record(state, "start", fedekd="0.1.0", server="fed.example.org:8000")
    left = {"numbers": {"n": 70}, "exchanged": [{"name": "proxy", "bytes": 8, "sha256": "ab"}]}
    last = record(state, "visit", asked={"federation": "0" * 16, "visit": 0}, answer="done", left=left)
    capsys.readouterr()
    assert main(["site", "audit", file, "--expect", early]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith(f"visit  1  federation {'0' * 16}  answered done  left: proxy, 8 bytes, sha256 ab; n 70")
    assert lines[3] == f"3 entries, none changed or missing in between; the last is {last}"
    (state / AUDIT).write_text("".join((state / AUDIT).read_text().splitlines(keepends=True)[:2]))
    assert main(["site", "audit", file]) == 0, "by itself a log does not know that its end was cut off"
    assert main(["site", "audit", file, "--expect", last]) == 2
    assert "entries were cut off, or replaced" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["site", "audit", file, "--json"]) == 0
    first, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["event"] == "key"
    assert first["public"].startswith("ecdsa-sha2-nistp384 ")
