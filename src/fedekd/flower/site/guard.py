"""The last look at what leaves a site: whatever made the letter, only what the site allows is in it.

The method's own door (``fedekd.exchange.Door``) lets only that pass which the method exchanges, by its name; here
stands what ``site.toml`` says, and that one model does not hide in another.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Code, Failed
from fedekd.flower.protocol.wire import Letter
from fedekd.flower.settings import SiteSettings


def guarded(site: SiteSettings, letter: Letter) -> Letter:
    """The letter, or an error if something exchanged or a word in it is not this site's to send."""
    exchanged, words = set(letter.models) - set(site.leave), set(letter.words) - _allowed(site)
    if exchanged or words:
        raise Failed(Code.FAULT, f"a letter with {sorted(exchanged | words)} was not sent: this site keeps that")
    return letter


def _allowed(site: SiteSettings) -> set[str]:
    allowed = {"code", "name"} | ({"privacy"} if site.dp else set())
    shared = {"n": {"n"}, "metric": {"metric", "local", "value"}, "delta": {"metric", "delta", "low", "high"}}
    return allowed.union(*(shared[name] for name in site.share))


def apart(models: Mapping[str, nn.Module]) -> None:
    """Raise where two roles share weights: what is sent of the one would be the other's."""
    owner: dict[int, str] = {}
    for role, model in models.items():
        for name, tensor in model.state_dict(keep_vars=True).items():
            place = tensor.untyped_storage().data_ptr()
            if place and owner.setdefault(place, role) != role:
                raise FedekdError(f"the {owner[place]} and the {role} model share {name!r}; build them apart")
