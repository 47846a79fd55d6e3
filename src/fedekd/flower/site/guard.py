"""What runs at a site, and what leaves it, is decided there: its consent to the server's terms, and a last look.

The method's own door (``fedekd.exchange.Door``) lets only that pass which the method exchanges, by its name; here
stands what ``site.toml`` says, and that one model does not hide in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn

from fedekd.data import load_dataset
from fedekd.data.own import Whole
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges
from fedekd.files import TABLES, file_kind
from fedekd.flower.protocol import masking, versions
from fedekd.flower.protocol.codes import Failed, StatusCode
from fedekd.flower.protocol.schema import Schema, as_in_settings
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import called
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.settings import SiteSettings
from fedekd.methods.base import Exchange, Method


def consent(site: SiteSettings, terms: Terms, schema: Schema) -> None:
    """Raise for terms that want more imported here, or more sent from here, than ``site.toml`` allows."""
    for name in terms.foreign():
        if name not in site.trusts:
            raise FedekdError(f"the server wants {name!r} imported here; add it to `trusts` if you agree")
    method = terms.make_method()
    method.check(schema.task)
    sends = exchanges(method, terms.rounds)
    for name, step in sorted(sends.items()):
        if name not in site.leave:
            raise FedekdError(
                f"method {terms.method!r} sends {called(step)}, which this site keeps; "
                f"add {name!r} to `leave` if it may go"
            )
    if _averages_private(method, sends.values()) and site.private and site.private != terms.private:
        raise FedekdError(
            f"method {terms.method!r} averages the private models, and this site has its own, {site.private!r}; "
            f"leave `private` out, or have the server set it for all"
        )
    if terms.weighting == "samples" and sends and "n" not in site.share:
        raise FedekdError("the server weights sites by their samples, and this site does not share `n`")
    if terms.aggregation == "secure":
        masking.refuse(method, terms.method, terms.rounds)
        if site.peers is None:
            raise FedekdError(
                "the server only adds up what sites send, and sites must know each other's keys for that; name a "
                "folder of the others' NAME.pub as `peers`"
            )
    elif site.peers is not None:
        raise FedekdError(
            "the server would see what this site sends, and a site with `peers` sends only masked uploads; have the "
            'server set aggregation = "secure", or leave `peers` out'
        )
    if site.dp and terms.augment != "none":
        raise FedekdError(
            "the server wants images flipped and cropped, which is not done with [dp]; leave one of them out"
        )
    if (terms.public or method.public) and site.public is None:
        raise FedekdError(f"the server has public rows for {terms.method!r}; name the same ones as `public`")


def kept_kinds(site: SiteSettings, schema: Schema) -> None:
    """Raise for a schema that reads numbers of this site as categories: a model would show which of them occur."""
    texts = Whole(schema.columns, schema.labels).texts(site.target)
    if not texts or not (file_kind(site.data) in TABLES or Path(site.data).is_dir()):
        return
    try:
        own = load_dataset(
            site.data, target=site.target, task=schema.task, part_of=Whole(), reading=site.reading, group=site.group
        )
    except FedekdError as error:
        as_in_settings(error)
    if numbers := sorted(texts & set(own.columns)):
        raise FedekdError(
            f"the schema reads column {numbers[0]!r} as categories, and here it holds numbers, which would tell which "
            "of them occur; `fedekd site accept SITE.toml --schema FILE` if that is meant"
        )


def _averages_private(method: Method, steps: Iterable[Exchange]) -> bool:
    """Whether a model travels that is built as the private one is, or on top of it."""
    roles = {role for step in steps for role in (None if step.send else step.name, step.target) if role}
    return "private" in {method.root(method.heads.get(role, role)) for role in roles}


def guarded(site: SiteSettings, payload: Payload) -> Payload:
    """The payload, or an error if something exchanged or a word in it is not this site's to send."""
    exchanged, words = set(payload.models) - set(site.leave), set(payload.words) - _allowed(site)
    if exchanged or words:
        raise Failed(StatusCode.FAULT, f"a message with {sorted(exchanged | words)} was not sent: this site keeps that")
    return payload


def _allowed(site: SiteSettings) -> set[str]:
    allowed = {"code", "name", "masking", *versions.own()} | ({"privacy"} if site.dp else set())
    shared = {
        "n": {"n"},
        "metric": {"metric", "local", "value"},
        "delta": {"metric", "delta", "low", "high"},
        "verdict": {"metric", "state", "gain", "p", "chosen_by"},
    }
    return allowed.union(*(shared[name] for name in site.share))


def apart(models: Mapping[str, nn.Module]) -> None:
    """Raise where two roles share weights: what is sent of the one would be the other's."""
    owner: dict[int, str] = {}
    for role, model in models.items():
        for name, tensor in model.state_dict(keep_vars=True).items():
            place = tensor.untyped_storage().data_ptr()
            if place and owner.setdefault(place, role) != role:
                raise FedekdError(f"the {owner[place]} and the {role} model share {name!r}; build them apart")
