"""A federation in one process: real server and site code, payloads handed over as Flower's records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedekd import models
from fedekd.data import Dataset
from fedekd.data.partition import dirichlet
from fedekd.engines.job import Job
from fedekd.engines.serial import Serial
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.rows import joined, of_site, read_public
from fedekd.flower.protocol.scaling import Scaling
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import ServerSettings, SiteSettings
from fedekd.flower.site import handlers

NAMES = ("alder", "birch", "cedar", "elm")
TINY = {"private": "tiny:tiny_private", "proxy": "tiny:tiny_proxy"}
nowhere = Path("/nonexistent")


class Hand:
    """Carries payloads by hand. ``spoil(name, kind, reply)`` may change an answer, or lose it by returning None."""

    def __init__(
        self, sites: list[SiteSettings], spoil: Callable[[str, str, Payload], Payload | None] | None = None
    ) -> None:
        self.sites = {1000 + k: site for k, site in enumerate(sites)}
        self.spoil = spoil or (lambda name, kind, reply: reply)
        self.asleep: set[str | int] = set()  # names or nodes
        self.revoked: set[int] = set()
        self.keys: dict[int, str] = {}  # the names of keys that are not called as their sites are
        self.waiting: list[tuple[int, Payload | None]] = []
        self.sent: list[tuple[str, str, Payload]] = []

    def online(self) -> set[int]:
        return {node for node in self.admitted() if not {node, self.sites[node].name} & self.asleep}

    def admitted(self) -> dict[int, str]:
        return {node: self.keys.get(node, site.name) for node, site in self.sites.items() if node not in self.revoked}

    def send(self, node: int, kind: str, payload: Payload) -> None:
        site = self.sites[node]
        reply = handlers.answer(site, kind, wire.from_records(wire.to_records(payload)))
        self.sent.append((site.name, kind, reply))
        spoilt = self.spoil(site.name, kind, wire.from_records(wire.to_records(reply)))
        self.waiting.append((node, spoilt))

    def receive(self) -> list[tuple[int, Payload | None]]:
        found, self.waiting = self.waiting, []
        return found

    def forget(self) -> None:
        self.waiting.clear()

    def wait(self, seconds: float) -> None: ...


def parts(dataset: Dataset, count: int) -> list[Dataset]:
    """The rows of ``count`` sites, unlike in number and in classes."""
    groups = dataset.y if dataset.task == "classification" else (dataset.x[:, 2] > np.median(dataset.x[:, 2]))
    dealt = dirichlet(np.asarray(groups), count, 0.5, np.random.default_rng(3), min_samples=15)
    return [replace(dataset, x=dataset.x[rows], y=dataset.y[rows], part=True) for rows in dealt]


def write_sites(folder: Path, dataset: Dataset, count: int = 3, **given) -> list[SiteSettings]:
    """Each site's rows in a file of its own. Alone they train plain Local, which takes the least time."""
    sites = []
    for name, part in zip(NAMES, parts(dataset, count), strict=False):
        file = folder / name / "rows.npz"
        file.parent.mkdir(parents=True)
        np.savez(file, x=part.x, y=part.y)
        settings = {
            "state": folder / name / "state", "leave": ("proxy", "private"), "trusts": tuple(TINY.values()),
            "alone": "plain",
        }  # fmt: skip
        sites.append(
            SiteSettings(
                **{"name": name, "server": "", "ca": nowhere, "key": nowhere, "data": str(file), **settings, **given}
            )
        )
    return sites


def make_server(folder: Path, **given) -> ServerSettings:
    settings = {
        "address": "", "ca": nowhere, "certificate": nowhere, "key": nowhere, "nodes": nowhere,
        "state": folder / "server", "rounds": 2, "epochs": 1, "batch_size": 16, "lr": 3e-3, "deadline": 60.0, **TINY,
    }  # fmt: skip
    return ServerSettings(**{**settings, **given})


def schema_of(dataset: Dataset) -> Schema:
    """With the dataset's own scaling for all, as a simulation has it."""
    return Schema.of(replace(dataset, columns=()), Scaling.of(dataset))


def simulate(
    server: ServerSettings, schema: Schema, sites: list[SiteSettings], rounds: int | None = None
) -> Serial:  # fmt: skip
    """The same federation in the serial engine, on the same rows."""
    terms = Terms.of(server)
    names = sorted(site.name for site in sites)
    own = {site.name: schema.load(site.data, group=site.group) for site in sites}
    public = read_public(server.public, schema).dataset if server.public else None
    whole = joined([of_site(own[name], schema, name, terms.seed, k, public) for k, name in enumerate(names)])
    factories = [models.factory(role, TINY[role]) for role in ("private", "proxy")]
    engine = Serial(Job(whole, terms.make_method(), terms.seed, terms.training(), *factories))
    for _ in range(server.rounds if rounds is None else rounds):
        engine.round()
    return engine


def federate(
    server: ServerSettings, schema: Schema, sites: list[SiteSettings], post: Hand | None = None
) -> tuple[Rounds, dict]:
    rounds = Rounds(server, schema, post or Hand(sites), len(sites))
    return rounds, rounds.run()


def state_of(site: SiteSettings) -> dict:
    """What a site has on its disk after the last visit."""
    from fedekd.flower.saved_state import SavedState

    (file,) = site.state.glob("*/state.pt")
    return SavedState(file.parent).load()[1]


def local_of(site: SiteSettings) -> dict:
    """The model that it has trained alone, plainly."""
    return state_of(site)["alone"]["local"]["engine"]["clients"][0]["models"]["private"]
