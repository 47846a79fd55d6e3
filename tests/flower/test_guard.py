"""Whatever made a payload, only what the site allows leaves."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from village import federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed, StatusCode
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.settings import Privacy
from fedekd.flower.site import handlers
from fedekd.flower.site.guard import apart, guarded


def made(tmp_path, digits, **given):
    return write_sites(tmp_path, digits, 2, **given)[0]


def test_models_and_words_that_a_site_keeps_do_not_leave(tmp_path, digits):
    site = made(tmp_path, digits, leave=("proxy",), share=("n",))
    fine = Payload({"code": 0, "name": "alder", "n": 3}, {"proxy": Packed("none", {})})
    assert guarded(site, fine) is fine
    for payload in (
        Payload({}, {"private": Packed("none", {})}),
        Payload({"delta": 0.1}),
        Payload({"metric": "accuracy"}),
        Payload({"privacy": "{}"}),
        Payload({"error": "KeyError: 'Miller, John'"}),
    ):
        with pytest.raises(Failed, match="was not sent"):
            guarded(site, payload)
    private = made(tmp_path / "other", digits, share=(), dp=Privacy(epsilon=1.0))
    assert guarded(private, Payload({"privacy": "{}"}))


def test_the_site_asks_the_guard(tmp_path, digits, monkeypatch):
    site = made(tmp_path, digits)
    monkeypatch.setattr(handlers, "join", lambda *_: Payload({"secret": "Miller, John"}))
    assert handlers.answer(site, "join", Payload({})).words == {"code": int(StatusCode.FAULT), "name": "alder"}


def test_roles_that_share_weights_are_refused():
    body = nn.Linear(3, 3)
    apart({"private": nn.Sequential(nn.Linear(3, 3), body), "proxy": nn.Linear(3, 3)})
    with pytest.raises(FedekdError, match=r"private and the proxy model share .0\.weight."):
        apart({"private": nn.Sequential(body, nn.ReLU()), "proxy": nn.Sequential(body, nn.Linear(3, 2))})
    view = nn.Linear(3, 3)
    view.weight = nn.Parameter(torch.empty(0))
    view.weight.data = body.weight.data[:2]
    with pytest.raises(FedekdError, match="share"):
        apart({"private": body, "proxy": view})


SHARED = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def shared(shape, outputs):
    return SHARED


def test_such_a_site_does_not_join(tmp_path, digits, caplog):
    name = f"{__name__}:shared"
    sites = write_sites(tmp_path, digits, private=name, trusts=(name,), leave=("proxy",))
    with caplog.at_level(logging.WARNING), pytest.raises(TooFew):
        federate(make_server(tmp_path, proxy=name, private=None, deadline=1.0), schema_of(digits), sites)
    assert "its model cannot be built or does not fit" in caplog.text


def test_a_site_with_its_own_private_model_does_not_join_where_they_are_averaged(tmp_path, digits, caplog):
    sites = write_sites(tmp_path, digits, private="tiny:tiny_proxy")
    with caplog.at_level(logging.WARNING), pytest.raises(TooFew):
        federate(make_server(tmp_path, method="fedavg", deadline=1.0), schema_of(digits), sites)
    assert "averages the private models" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "folder"])
def test_numbers_are_not_read_as_categories_whatever_the_kind_of_file(tmp_path, digits, kind):
    import gzip
    from dataclasses import replace

    from fedekd.data import load_dataset
    from fedekd.flower.protocol.schema import Schema
    from fedekd.flower.site.guard import kept_kinds

    texts = "".join(f"x{i % 3},{i % 2}\n" for i in range(30))
    (tmp_path / "theirs.csv").write_text("age,ill\n" + texts)
    schema = Schema.of(load_dataset(tmp_path / "theirs.csv", target="ill"))
    ours = "age,ill\n" + "".join(f"{20 + i % 3},{i % 2}\n" for i in range(30))
    path = tmp_path / ("rows" if kind == "folder" else f"ours.{kind}")
    if kind == "folder":
        path.mkdir()
        (path / "ward.csv").write_text(ours)
    else:
        content = ours.replace(",", "\t") if kind == "tsv" else ours
        path.write_bytes(gzip.compress(content.encode()) if kind.endswith("gz") else content.encode())
    site = replace(made(tmp_path / "sites", digits), data=str(path), target="ill")
    with pytest.raises(FedekdError, match="reads column 'age' as categories"):
        kept_kinds(site, schema)
