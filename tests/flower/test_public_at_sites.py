"""Public rows: the server and every site hold the same ones, and a site with others stays out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_equality import place
from village import Hand, federate, make_server, schema_of, state_of

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.rows import check_public, joined, of_server, of_site, read_public
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.setup.check import check_method


def written(path, dataset, rows, **more):
    np.savez(path, x=dataset.x[rows], **({"y": dataset.y[rows]} | more))
    return path


def test_what_a_file_holds(tmp_path, digits):
    schema, rows = schema_of(digits), np.arange(12)
    found = read_public(written(tmp_path / "a.npz", digits, rows), schema)
    assert found.labelled
    assert np.array_equal(found.dataset.x, digits.x[rows])
    assert np.array_equal(found.dataset.y, digits.y[rows])
    again = read_public(written(tmp_path / "b.npz", digits, rows), schema)
    assert again.fingerprint == found.fingerprint
    others = [written(tmp_path / "c.npz", digits, rows[::-1]), written(tmp_path / "d.npz", digits, rows[1:])]
    np.savez(tmp_path / "e.npz", x=digits.x[rows], y=digits.y[rows][::-1])
    assert found.fingerprint not in {read_public(p, schema).fingerprint for p in (*others, tmp_path / "e.npz")}


def test_rows_without_labels(tmp_path, digits):
    np.savez(tmp_path / "bare.npz", x=digits.x[:12])
    np.savez(tmp_path / "zero.npz", x=digits.x[:12], y=np.zeros(12, np.int64))
    schema = schema_of(digits)
    bare, zero = (read_public(tmp_path / name, schema) for name in ("bare.npz", "zero.npz"))
    assert (bare.labelled, zero.labelled) == (False, True)
    assert np.array_equal(bare.dataset.x, digits.x[:12])
    assert bare.fingerprint != zero.fingerprint
    check_public("rows", bare, "logits", "server.toml")
    with pytest.raises(FedekdError, match="needs the labels of the public rows"):
        check_public("labels", bare, "logits", "server.toml")
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 5), np.float32))
    with pytest.raises(FedekdError, match=r"rows of shape \(5,\), the schema's have"):
        read_public(tmp_path / "wide.npz", schema)


def test_a_table_comes_in_the_schemas_columns(tmp_path):
    from fedekd.data import load_dataset
    from fedekd.flower.protocol.schema import Schema

    lines = ["age,sex,outcome", *(f"{20 + k},{'mf'[k % 2]},{'ny'[k % 3 > 0]}" for k in range(20))]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    (tmp_path / "public.csv").write_text("sex,age,outcome\nf,30,y\nf,31,n\n")
    schema = Schema.of(load_dataset(tmp_path / "all.csv", target="outcome"))
    found = read_public(tmp_path / "public.csv", schema, "outcome").dataset
    place = {name: k for k, name in enumerate(schema.columns)}
    assert found.x[:, place["age"]].tolist() == [30, 31]
    assert found.x[:, place["sex=f"]].tolist() == [1, 1]
    assert [schema.labels[k] for k in found.y] == ["y", "n"]


def test_they_are_nobodys_own(tmp_path, digits):
    schema = schema_of(digits)
    public = read_public(written(tmp_path / "a.npz", digits, np.arange(12)), schema).dataset
    sites = [of_site(schema.fit(digits), schema, name, 0, k, public) for k, name in enumerate("ab")]
    bare = of_site(schema.fit(digits), schema, "a", 0, 0)
    for split in ("train", "val", "test"):
        assert np.array_equal(getattr(sites[0].clients[0], split), getattr(bare.clients[0], split))
        assert not set(getattr(sites[0].clients[0], split)) & set(sites[0].public)
    for federation in (*sites, joined(sites), of_server(schema, 0, public)):
        assert np.array_equal(federation.dataset.x[federation.public], digits.x[:12])
        assert np.array_equal(federation.dataset.y[federation.public], digits.y[:12])
    assert len(joined(sites).dataset.y) == 2 * len(digits.y) + 12
    assert len(of_server(schema, 0).public) == 0


def test_a_site_with_other_rows_stays_out(tmp_path, digits, caplog):
    server, sites = place(tmp_path, digits, "toys:Logits", epochs=1)
    other = written(tmp_path / "other.npz", digits, np.arange(5))
    sites[1] = replace(sites[1], public=other)
    post = Hand(sites)
    _, report = federate(server, schema_of(digits), sites, post)
    assert [site["name"] for site in report["sites"]] == ["alder", "cedar"]
    assert f"the public rows in {other} are not the server's" in caplog.text
    (reply,) = [reply for name, _, reply in post.sent if name == "birch"]
    assert reply.words == {"code": int(StatusCode.REFUSED), "name": "birch"}
    assert len(state_of(sites[0])["client"]["received"]["logits"]["out"]) == 20


def test_a_site_without_rows_stays_out(tmp_path, digits, caplog):
    server, sites = place(tmp_path, digits, "toys:Refined", deadline=0.2)
    with pytest.raises(TooFew):
        federate(server, schema_of(digits), [replace(site, public=None) for site in sites])
    assert "name the same ones as `public`" in caplog.text


def test_rows_that_change_in_the_middle_are_noticed(tmp_path, digits):
    server, sites = place(tmp_path, digits, "toys:Logits", epochs=1)
    own = tmp_path / "own.npz"
    own.write_bytes(server.public.read_bytes())
    sites[1] = replace(sites[1], public=own)

    def spoil(name, kind, reply):
        if (name, kind) == ("birch", "visit"):
            written(own, digits, np.arange(20))
        return reply

    _, report = federate(server, schema_of(digits), sites, Hand(sites, spoil))
    assert [("birch" in names) for names in report["counted"]] == [True, False, False]
    assert {r["reason"] for r in report["refused"]} == {StatusCode.DATA.meaning}


def test_a_server_without_the_rows_that_its_method_needs(tmp_path, digits):
    server = make_server(tmp_path, method="toys:Logits")
    with pytest.raises(FedekdError, match=r"needs public rows; name a file of them as `public` in server\.toml"):
        Rounds(server, schema_of(digits), Hand([]), 0)
    with pytest.raises(FedekdError, match="needs public rows; name a file"):
        check_method(server, "server.toml")
    with pytest.raises(FedekdError, match=r"none\.npz"):
        Rounds(replace(server, public=tmp_path / "none.npz"), schema_of(digits), Hand([]), 0)


def test_another_file_is_another_federation(tmp_path, digits):
    server, sites = place(tmp_path, digits, "toys:Logits", rounds=1, epochs=1)
    federate(server, schema_of(digits), sites)
    other = replace(server, public=written(tmp_path / "other.npz", digits, np.arange(5)))
    with pytest.raises(FedekdError, match="began with other settings: public was"):
        federate(other, schema_of(digits), sites)
