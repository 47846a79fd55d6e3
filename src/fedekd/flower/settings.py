"""``server.toml`` and ``site.toml`` as frozen dataclasses.

Every key is explained where the file is written and checked when it is read: see ``toml_files``.
"""

# ruff: noqa: RUF009  (entry makes a dataclass field)
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedekd.dataset import Reading
from fedekd.errors import FedekdError
from fedekd.files import DATA_FILES, file_kind
from fedekd.flower.secure_settings import AGGREGATIONS, MASKING_STAGES, MASKING_WAIT, check_secure
from fedekd.flower.toml_files import entry, read
from fedekd.settings import CHOICES, check_combine

COMPRESSIONS = ("none", "fp16", "int8")
STARTING = 120.0  # seconds from the start of `fedekd server run` until sites are asked, and to spare
SHARED = ("n", "metric", "delta", "verdict")
MENU, PLAIN = "menu", "plain"
VISITS_DONE = "visits_done"  # file in the server's state: how many visits are complete
OFFERED = "offered.json"  # file in a site's state: the last offer that it refused, until another is accepted
ENDED = "ended"  # file in state/FEDERATION: the server has said that the federation is complete
NO_RESULT = "no result"  # what that file holds where this site's last visit failed or was missed
GUARANTEES = (
    "the sent models, end to end",
    "the sent models, for a fixed private model only",
    "the sent models, end to end, for all rows of a patient together",
    "the sent models, for a fixed private model only, for all rows of a patient together",
)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
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
    weight_decay: float = entry(
        "weight decay in every step; with adam it is decoupled from the gradient (AdamW)", 0.0, low=0
    )
    augment: str = entry(
        "none, or flip-crop: random flips and crops of the images that are trained on",
        "none",
        choices=CHOICES["augment"],
    )
    optimizer: str = entry(
        "adam, sgd or momentum (sgd with momentum 0.9), fresh each round", "adam", choices=CHOICES["optimizer"]
    )
    participation: float = entry("share of the sites that take part in a round, drawn anew each time", 1.0)
    seed: int = entry("seed of the initial weights and the batches", 0, low=0)
    min_sites: int = entry("the smallest number of sites that must answer for a round to count", 2, low=1)
    deadline: float = entry("seconds that a round, or the start, waits for its sites", 3600.0, low=1)
    largest: float = entry("the largest message of a site that is accepted, in megabytes", 1000.0, low=0.1)
    compression: str = entry("compression of what is sent: none, fp16 or int8", "none", choices=COMPRESSIONS)
    combine: str = entry(
        "how the sites' models become one: mean; or, with three sites or more, median, trimmed or krum",
        "mean",
        choices=CHOICES["combine"],
    )
    aggregation: str = entry(
        "plain, or secure: the server sees only the sum of what sites send, and can check none of it",
        "plain",
        choices=AGGREGATIONS,
    )
    mask_limit: float = entry("with secure: the largest change of a number in a round; what is larger is cut off", 16.0)
    mask_threshold: float = entry(
        "with secure: more than this share of a round's sites must stay to the end of it, at least 0.5", 0.5
    )
    weighting: str = entry(
        "weights of the mean: uniform, or by the samples of each site", "uniform", choices=CHOICES["weighting"]
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


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy of what leaves the site.

    How it prints is part of the key that noise is drawn from: under another name what was paid for is paid for again.
    """

    epsilon: float = entry("the whole run's privacy budget")
    delta: float = entry("chance that the budget does not hold; below 1/rows", 1e-5)
    clip: float = entry("largest norm of one sample's gradient", 1.0)
    teacher: str = entry(
        'what the proxy learns from: "labels", or "private" for the method\'s own loss, which weakens the guarantee',
        "labels",
        choices=("labels", "private"),
    )


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    name: str = entry("the site's name, as others see it in the report")
    server: str = entry("the server's address, host:port")
    ca: Path = entry("certificate of the authority that signed the server's certificate")
    key: Path = entry("this site's private key; its .pub half is known to the server")
    peers: Path | None = entry(
        "folder of the other sites' public keys, NAME.pub, as they (not the server) gave them; "
        "with it this site sends only masked uploads",
        None,
        example="peers",
    )
    state: Path = entry("folder for the private model and what else the site keeps between rounds")
    data: str = entry("the site's rows: a .csv, .npz or folder, a dataset's name, or package.module:loader")
    target: str | None = entry("target column of a .csv", None, example="outcome")
    drop: tuple[str, ...] = entry("columns of a .csv to leave out", ())
    decimal: str = entry('decimal mark of a .csv, "." or ","', ".", choices=CHOICES["decimal"])
    dates: str = entry(
        'what columns of dates become: "text", a category for each day; "age", the years until 2025; or "drop"',
        "text",
        choices=CHOICES["dates"],
    )
    missing: str | None = entry(
        'missing values: "drop" leaves their rows out; "mean" fills a number with the mean of this site\'s training '
        "rows, and a missing text is none of the categories",
        None,
        choices=("drop", "mean"),
        example="mean",
    )
    na_values: tuple[str, ...] | None = entry(
        "texts that mean a missing value, in place of the usual NA, null, ..", None, example=["NA", "<5"]
    )
    group: str | None = entry(
        "column of a .csv, or array of a .npz, that names the patient of each row: it is not an input, "
        "nobody's rows are both trained and tested on, and [dp] protects all rows of one patient together",
        None,
        example="patient",
    )
    public: Path | None = entry(
        "the public rows that the server names, where a method needs them: a .npz, .csv or folder",
        None,
        example="public.npz",
    )
    task: str | None = entry(
        "classification or regression, where the data does not tell",
        None,
        choices=CHOICES["task"],
        example="regression",
    )
    private: str | None = entry(
        "own private model: package.module:function(shape, outputs), installed or beside this file; else a built-in",
        None,
        example="hospital.models:private",
    )
    share: tuple[str, ...] = entry(
        "numbers that may leave the site for the report: n, metric, delta, and verdict with its p-value; "
        "[] shares nothing",
        SHARED,
        choices=SHARED,
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
    alone: str = entry(
        "what joining is compared with: menu, the best of plain training alone, with smoothed targets and the method's "
        "isolated twin; or plain alone, which saves time",
        MENU,
        choices=(MENU, PLAIN),
    )
    chosen_by: str = entry(
        "what of the validation rows chooses the best of that menu: metric; or loss, unless that of plain training is "
        "within one standard error of the lowest",
        "metric",
        choices=CHOICES["chosen_by"],
    )
    device: str = entry("cpu, cuda or cuda:N", "cpu")
    threads: int = entry("threads for training; 0 takes all cores", 0, low=0)
    port: int = entry("a free port on this machine, open to this machine only", 9094, low=1)
    largest: float = entry("the largest answer of the server that is not a model, in megabytes", 1000.0, low=0.1)
    longest: float = entry("seconds that the work for one message may take before it is stopped", 86400.0, low=1)
    give_up: float = entry("seconds without a connection after which `fedekd site run` ends", 3600.0, low=1)
    dp: Privacy | None = entry(
        "differential privacy of what leaves; none if left out",
        None,
        table=Privacy,
        example={"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "teacher": "labels"},
    )

    @property
    def reading(self) -> Reading:
        return Reading.of(self)


# --- reading -------------------------------------------------------------------------------------------------------


def read_server(path: str | Path) -> ServerSettings:
    server = read(ServerSettings, path, {"site": SiteSettings})
    file = Path(path).expanduser().absolute()
    checked_address(server.address, f"{file}: address")
    if server.lr <= 0:
        raise FedekdError(f"{file}: lr must be a number > 0, got {server.lr:g}")
    if not 0 < server.participation <= 1:
        raise FedekdError(f"{file}: participation must be above 0 and at most 1, got {server.participation:g}")
    masking = MASKING_STAGES * min(server.deadline, MASKING_WAIT) if server.aggregation == "secure" else 0
    if server.give_up < (least := 2 * server.deadline + masking + STARTING):
        raise FedekdError(
            f"{file}: give_up must be at least {least:g} s, got {server.give_up:g}: a healthy round may wait one "
            f"deadline ({server.deadline:g} s) for a site to join and one for an answer"
            + (f", and {masking:g} s to mask and unmask" if masking else "")
        )
    check_combine(server.combine, server.weighting, f"{file}: ")
    if server.combine != "mean" and server.min_sites < 3:
        raise FedekdError(
            f"{file}: combine = {server.combine!r} cannot tell which of two sites is wrong; set min_sites to 3 or "
            f'more, got {server.min_sites}, or combine = "mean"'
        )
    if server.aggregation == "secure":
        check_secure(server, f"{file}: ")
    return server


def read_site(path: str | Path) -> SiteSettings:
    site = read(SiteSettings, path, {"server": ServerSettings})
    file = Path(path).expanduser().absolute()
    checked_name(site.name, file)
    checked_address(site.server, f"{file}: server")
    if site.port > 65535:
        raise FedekdError(f"{file}: port must be at most 65535, got {site.port}")
    if site.dp and not (site.dp.epsilon > 0 and 0 < site.dp.delta < 1 and site.dp.clip > 0):
        raise FedekdError(f"{file}: [dp] needs epsilon > 0, 0 < delta < 1 and clip > 0, got {site.dp}")
    if site.dp and site.missing == "mean":
        raise FedekdError(
            f'{file}: with [dp], missing = "mean" would carry rows past the noise, since a mean tells of all of them; '
            'set missing = "drop", or fill the values by a rule that looks at no row'
        )
    local = site.local if site.local == "train" else str(file.parent / Path(site.local).expanduser())
    return replace(site, data=_located(site.data, file.parent), local=local)


def _located(data: str, folder: Path) -> str:
    """A path from the file's own folder; a dataset's name or a loader stays as it is."""
    path = folder / Path(data).expanduser()
    is_path = "/" in data or file_kind(data) in DATA_FILES or path.exists()
    return str(path) if is_path else data


def checked_address(text: str, what: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise FedekdError(f"{what} must look like fed.example.org:8000, got {text!r}")
    return host, int(port)


def checked_name(name: str, where: Path | str) -> str:
    """A site's name, which is also a file's name."""
    if not usable_name(name):
        raise FedekdError(f"{where}: a site's name has letters, digits, . _ - and at most 63 of them, got {name!r}")
    return name


def usable_name(name: str) -> str:
    """The name, or nothing where it is not one."""
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) else ""
