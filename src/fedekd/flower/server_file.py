"""``server.toml``: where the server listens, whom it lets in and what the federation trains."""

# ruff: noqa: RUF009  (entry makes a dataclass field)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower import toml_file
from fedekd.flower.addresses import checked_address
from fedekd.flower.toml_file import entry
from fedekd.settings import CHOICES

COMPRESSIONS = ("none", "fp16", "int8")
STARTING = 120.0  # seconds from the start of `fedekd server run` until sites are asked, and to spare
COMBINATIONS = ("mean", "median", "trimmed", "krum")


@dataclass(frozen=True, kw_only=True)
class Server:
    address: str = entry("the address that sites use, host:port; the certificate must name this host")
    listen: str = entry("where to listen; 0.0.0.0 for all networks of this machine", "0.0.0.0")
    ca: Path = entry("certificate of the authority that signed the certificate; every site gets a copy")
    certificate: Path = entry("the server's certificate")
    key: Path = entry("the server's private key")
    nodes: Path = entry("folder of the sites' public keys, NAME.pub; only these sites are let in")
    state: Path = entry("folder for finished rounds, the report and Flower's database")
    method: str = entry("what to train; `fedekd methods` lists the names", "fedekd")
    rounds: int = entry("communication rounds", 10, low=1)
    epochs: int = entry("local epochs per round", 2, low=1)
    batch_size: int = entry("samples per batch", 32, low=1)
    lr: float = entry("learning rate", 1e-3)
    lr_schedule: str = entry(
        "constant, or cosine: the rate falls round by round, to nearly 0 in the last",
        "constant",
        choices=CHOICES["lr_schedule"],
    )
    optimizer: str = entry(
        "adam, sgd or momentum (sgd with momentum 0.9), fresh each round", "adam", choices=CHOICES["optimizer"]
    )
    weight_decay: float = entry(
        "decay of the weights in every step; with adam apart from the gradient (AdamW)", 0.0, low=0
    )
    augment: str = entry(
        "none, or flip-crop: random flips and crops of the images that are trained on",
        "none",
        choices=CHOICES["augment"],
    )
    participation: float = entry("share of the sites that take part in a round, drawn anew each time", 1.0)
    seed: int = entry("of the initial weights and the batches", 0, low=0)
    min_sites: int = entry("a round counts if at least so many sites answered", 2, low=1)
    deadline: float = entry("seconds a round waits for its sites", 3600.0, low=1)
    largest: float = entry("megabytes that one site's message may have; more is not taken", 1000.0, low=0.1)
    compression: str = entry("of what is sent: none, fp16 or int8", "none", choices=COMPRESSIONS)
    combine: str = entry(
        "how the sites' models become one: mean; or, of three and more, median, trimmed or krum",
        "mean",
        choices=COMBINATIONS,
    )
    weighting: str = entry(
        "of the mean: uniform, or by the samples of each site", "uniform", choices=CHOICES["weighting"]
    )
    proxy: str | None = entry(
        "own proxy model: package.module:function(shape, outputs), installed or beside this file; else a built-in",
        None,
        example="hospital.models:proxy",
    )
    private: str | None = entry(
        "where a method averages private models: the factory of all sites; the built-in one if left out",
        None,
        example="hospital.models:private",
    )
    schema: Path | None = entry(
        "file that says what a row looks like; sites check their data against it", None, example="schema.json"
    )
    public: Path | None = entry(
        "rows that server and sites all hold, for methods that need them: a .npz, .csv or folder; sites check theirs",
        None,
        example="public.npz",
    )
    target: str | None = entry("target column of a .csv of public rows", None, example="outcome")
    give_up: float = entry("seconds without progress after which `fedekd server run` ends", 10800.0, low=1)
    parameters: Mapping[str, Any] = entry(
        "the method's own parameters, as `fedekd methods` lists them", {}, example={"beta": 1.0}
    )


def read_server(path: str | Path) -> Server:
    server = toml_file.read(Server, path)
    file = Path(path).expanduser().absolute()
    checked_address(server.address, f"{file}: address")
    if server.lr <= 0:
        raise FedekdError(f"{file}: lr must be a number > 0, got {server.lr:g}")
    if not 0 < server.participation <= 1:
        raise FedekdError(f"{file}: participation must be above 0 and at most 1, got {server.participation:g}")
    if server.give_up < (least := 2 * server.deadline + STARTING):
        raise FedekdError(
            f"{file}: give_up must be at least {least:g} s, got {server.give_up:g}: a healthy round may wait one "
            f"deadline ({server.deadline:g} s) for a site to join and one for an answer"
        )
    if server.combine != "mean" and server.weighting != "uniform":
        raise FedekdError(f'{file}: combine = {server.combine!r} knows no weights; set weighting = "uniform"')
    if server.combine != "mean" and server.min_sites < 3:
        raise FedekdError(
            f"{file}: combine = {server.combine!r} cannot tell which of two sites is wrong; set min_sites to 3 or "
            f'more, got {server.min_sites}, or combine = "mean"'
        )
    return server


def check_schema(server: Server, file: str | Path) -> None:
    """Raise for a schema that is not there or is none; apart, because it imports what reads data."""
    from fedekd.flower.schema import Schema

    remedy = "make one with `fedekd site schema` at one of the sites"
    if server.schema is None:
        raise FedekdError(f"{file} names no `schema`; {remedy}")
    try:
        Schema.read(server.schema)
    except FedekdError as error:
        raise FedekdError(f"{error}; {remedy} and put it there") from None


def check_method(server: Server, where: str | Path) -> None:
    """Raise for a method or parameter that does not exist or sends nothing; apart, because it imports torch."""
    from fedekd import methods
    from fedekd.exchange import exchanges

    try:
        method = methods.get(server.method, **server.parameters)
    except FedekdError as error:
        raise FedekdError(f"{where}: {error}") from None
    if not exchanges(method, server.rounds):
        raise FedekdError(
            f"{where}: {server.method} sends nothing, so there is nothing to federate; name another method"
        )
    if method.public and server.public is None:
        raise FedekdError(f"{where}: {server.method} needs public rows; name a file of them as `public`")
