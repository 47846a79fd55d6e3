"""``site.toml``: what one site is, what it holds and what it lets out."""

# ruff: noqa: RUF009  (entry makes a dataclass field)
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower import toml_file
from fedekd.flower.addresses import checked_address, checked_name
from fedekd.flower.toml_file import entry
from fedekd.settings import CHOICES

SHARED = ("n", "metric", "delta")
ENDED = "ended"  # file in state/FEDERATION: the server has said that the federation is complete
GUARANTEES = ("the sent models, end to end", "the sent models, for a fixed private model only")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy of what leaves the site."""

    epsilon: float = entry("the whole run's privacy budget")
    delta: float = entry("chance that the budget does not hold; below 1/rows", 1e-5)
    clip: float = entry("largest norm of one sample's gradient", 1.0)
    teacher: str = entry(
        'what the proxy learns from: "labels", or "private" for the method\'s own loss, which weakens the guarantee',
        "labels",
        choices=("labels", "private"),
    )


@dataclass(frozen=True, kw_only=True)
class Site:
    name: str = entry("the site's name, as others see it in the report")
    server: str = entry("the server's address, host:port")
    ca: Path = entry("certificate of the authority that signed the server's certificate")
    key: Path = entry("this site's private key; its .pub half is known to the server")
    state: Path = entry("folder for the private model and what else the site keeps between rounds")
    data: str = entry("the site's rows: a .csv, .npz or folder, a dataset's name, or package.module:loader")
    target: str | None = entry("target column of a .csv", None, example="outcome")
    public: Path | None = entry(
        "the public rows that the server names, where a method needs them: a .npz, .csv or folder",
        None,
        example="public.npz",
    )
    task: str | None = entry("where the data does not say", None, choices=CHOICES["task"], example="regression")
    private: str | None = entry(
        "own private model: package.module:function(shape, outputs), installed or beside this file; else a built-in",
        None,
        example="hospital.models:private",
    )
    share: tuple[str, ...] = entry(
        "numbers that may leave the site for the report: n, metric, delta; [] keeps them all", SHARED, choices=SHARED
    )
    leave: tuple[str, ...] = entry(
        'what may leave the site, by the name of its exchange: "proxy"; "private" for methods that average private '
        'models; else as the method calls it, such as "prototypes" or "logits"',
        ("proxy",),
    )
    trusts: tuple[str, ...] = entry(
        "package.module:name of a proxy, a model or a method that the server may have this site import", ()
    )
    local: str = entry('training alone, to compare with: "train", or a file with weights trained before', "train")
    device: str = entry("cpu, cuda or cuda:N", "cpu")
    threads: int = entry("threads for training; 0 takes all cores", 0, low=0)
    port: int = entry("a free port on this machine, open to this machine only", 9094, low=1)
    largest: float = entry("megabytes that an answer of the server may have that is no model", 1000.0, low=0.1)
    longest: float = entry("seconds that the work for one message may take before it is broken off", 86400.0, low=1)
    give_up: float = entry("seconds without a connection after which `fedekd site run` ends", 3600.0, low=1)
    dp: Privacy | None = entry(
        "differential privacy of what leaves; none if left out",
        None,
        table=Privacy,
        example={"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "teacher": "labels"},
    )


def read_site(path: str | Path) -> Site:
    site = toml_file.read(Site, path)
    file = Path(path).expanduser().absolute()
    checked_name(site.name, file)
    checked_address(site.server, f"{file}: server")
    if site.port > 65535:
        raise FedekdError(f"{file}: port must be at most 65535, got {site.port}")
    if site.dp and not (site.dp.epsilon > 0 and 0 < site.dp.delta < 1 and site.dp.clip > 0):
        raise FedekdError(f"{file}: [dp] needs epsilon > 0, 0 < delta < 1 and clip > 0, got {site.dp}")
    local = site.local if site.local == "train" else str(file.parent / Path(site.local).expanduser())
    return replace(site, data=_located(site.data, file.parent), local=local)


def _located(data: str, folder: Path) -> str:
    """A path from the file's own folder; a dataset's name or a loader stays as it is."""
    path = folder / Path(data).expanduser()
    is_path = "/" in data or Path(data).suffix.lower() in (".csv", ".npz") or path.exists()
    return str(path) if is_path else data
