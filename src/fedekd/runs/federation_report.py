"""``report.json``: what a federation leaves behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, NotRequired, TypedDict, cast, get_type_hints

from fedekd.errors import FedekdError
from fedekd.files import owner_only
from fedekd.settings import ChosenBy
from fedekd.significance import holm
from fedekd.units import METRICS, Unit
from fedekd.validation import Finite, Invalid, parse_json, validator
from fedekd.verdicts import HARMED, HELPED, LEVEL, STATES, UNDECIDED

SECURE = "secure"  # of `aggregation`
SUMS = "only sums of what sites sent, never a single site's upload (secure aggregation)"
SIGNED = "signed.json"  # beside a report: what the server states of the result, with its signature


class SiteRow(TypedDict, total=False):
    """A site and what it shares."""

    name: str
    answered: bool
    metric: str | None
    n: int | None
    local: float | None
    value: float | None
    delta: float | None
    low: float | None
    high: float | None
    state: str | None
    gain: float | None
    p: float | None
    chosen_by: str | None


class SpentBudget(TypedDict):
    epsilon: float
    delta: float
    guarantee: str


class BestAlone(TypedDict):
    """And what it is compared with: at the round that the site ends with."""

    label: str
    round: int
    value: float


class MenuEntry(TypedDict):
    label: str


class SiteScores(TypedDict):
    """Every metric of the task on the test rows, at the rounds of the verdict; None where it is not defined on them."""

    alone: dict[str, float | None]
    joined: dict[str, float | None]


class SiteVerdict(TypedDict):
    """The verdict on the method against the best alone, each at the round that validation rows prefer."""

    state: str
    recommendation: str
    reason: str
    low: NotRequired[float | None]
    high: NotRequired[float | None]


class SiteReport(TypedDict):
    """What a site keeps on its own disk."""

    name: str
    method: str
    metric: str
    local: float
    value: float
    delta: float
    n_train: int
    n_val: NotRequired[int]
    n_test: NotRequired[int]
    privacy: NotRequired[SpentBudget | None]
    aggregation: NotRequired[str]
    recipe: NotRequired[float]
    federation: NotRequired[float]
    gain: NotRequired[float]
    joined: NotRequired[BestAlone]
    alone: NotRequired[BestAlone]
    menu: NotRequired[list[MenuEntry]]
    chosen_by: NotRequired[ChosenBy]
    group: NotRequired[str | None]
    verdict: NotRequired[SiteVerdict]
    scores: NotRequired[SiteScores]


def other_metrics(own: SiteReport) -> list[tuple[str, str, str]]:
    """By metric, its name and what the best alone and the federation's model reach: those that no verdict is about."""
    if "scores" not in own:
        return []
    alone, joined = own["scores"]["alone"], own["scores"]["joined"]
    found = []
    for name in (name for name in METRICS if name in alone and name in joined and name != own["metric"]):
        pair = [math.nan if x is None else x for x in (alone[name], joined[name])]
        unit = Unit.of([{"metric": name, "clients": [{"local": pair[0]}]}])
        values = ["n/a" if math.isnan(x) else unit.value(x) for x in pair]
        found.append((unit.titled, values[0], values[1]))
    return found


class RefusedAnswer(TypedDict):
    visit: int
    site: str
    reason: str


@dataclass(frozen=True)
class FederationReport:
    method: str
    complete: bool
    rounds: int = 0
    sites: list[SiteRow] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: Finite = 0.0
    privacy: dict[str, SpentBudget] | None = None  # by site
    compression: str = "none"
    combine: str = "mean"
    aggregation: str = "plain"
    smallest_sum: int | None = None
    """With secure aggregation: of how many uploads the smallest sum was that the server has seen."""
    refused: list[RefusedAnswer] = field(default_factory=list)
    error: str = ""

    @property
    def unit(self) -> Unit:
        """How numbers are written, as for a run: the metric that most sites tell."""
        told = Counter(site["metric"] for site in self.sites if site.get("metric")).most_common(1)
        alone = [value for site in self.sites if (value := site.get("local")) is not None]
        clients = [{"local": value} for value in alone or self.deltas]
        return Unit.of([{"metric": told[0][0] if told else "accuracy", "clients": clients}])

    @property
    def missing(self) -> list[str]:
        """The sites that were away in the last visit, and have neither a final model nor a verdict."""
        return [site.get("name", "?") for site in self.sites if not site.get("answered", True)]

    @property
    def known(self) -> list[SiteRow]:
        """The sites that share their Δ."""
        return [site for site in self.sites if site.get("delta") is not None]

    @property
    def deltas(self) -> list[float]:
        return [value for site in self.sites if (value := site.get("delta")) is not None]

    @property
    def surely_harmed(self) -> int:
        return sum(state == HARMED for state in self.interval_states.values())

    @property
    def surely_helped(self) -> int:
        return sum(state == HELPED for state in self.interval_states.values())

    @property
    def interval_states(self) -> dict[str, str]:
        """By name, of the sites that share their Δ: whether it lies beyond the chance of their test rows.

        At 5 % over all sites that tell its interval (Holm's method).

        A p-value is told only with a verdict; here it is the one that a normal distribution gives an interval of 95 %.
        """
        told = [(site.get("name", "?"), site.get("low"), site.get("high")) for site in self.known]
        ends = [(name, a, b) for name, a, b in told if a is not None and b is not None]
        middles, halves = [(a + b) / 2 for _, a, b in ends], [abs(b - a) / 2 for _, a, b in ends]
        in_halves = [abs(m) / half if half else math.inf if m else 0.0 for m, half in zip(middles, halves, strict=True)]
        normal = NormalDist()
        p_values = holm([2 * normal.cdf(normal.inv_cdf(LEVEL / 2) * far) for far in in_halves])
        clear = {
            name: HARMED if self.unit.harm(middle) > 0 else HELPED
            for (name, *_), middle, p in zip(ends, middles, p_values, strict=True)
            if p < LEVEL
        }
        return {name: clear.get(name, UNDECIDED) for name, *_ in told}

    @property
    def states(self) -> dict[str, str]:
        """By name, of the sites that share their verdict.

        A site judges itself alone; here Holm's method is over all of them, and what is not clear after it is undecided.
        """
        told = {site.get("name", "?"): site for site in self.sites if site.get("state") in STATES}
        adjusted = holm([p if (p := site.get("p")) is not None else 1.0 for site in told.values()])
        found = {}
        for (name, site), p in zip(told.items(), adjusted, strict=True):
            state = str(site.get("state"))
            found[name] = UNDECIDED if state in (HELPED, HARMED) and p >= LEVEL else state
        return found

    @property
    def server_view(self) -> dict[str, str]:
        """What the server saw of single sites, and what it therefore could check."""
        if self.aggregation != SECURE:
            return {"saw": "the upload of each site", "checked": "each upload's size, direction and history"}
        smallest = f"; the smallest sum was of {self.smallest_sum} uploads" if self.smallest_sum else ""
        return {
            "saw": f"{SUMS}{smallest}",
            "checked": "no single upload: not its size, direction or history, and no robust combination",
        }

    def budgets(self) -> dict[str, str]:
        return budgets(self.privacy or {})


def budgets(spent: Mapping[str, SpentBudget | None]) -> dict[str, str]:
    """By site, what it has spent, of those with a budget."""
    return {
        name: f"epsilon {one['epsilon']:.3g} at delta {one['delta']:g}, for {one['guarantee']}"
        for name, one in spent.items()
        if one
    }


def read_report(state: Path) -> FederationReport | None:
    """The report in a server's state folder; None where there is none yet."""
    path = state / "report.json"
    try:
        return _report(parse_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise owner_only(path) from None
    except (OSError, ValueError, TypeError) as error:
        raise FedekdError(
            f"cannot read {path}: {error}; move it away, and `fedekd server run` writes it anew"
        ) from None


def signed_lines(folder: Path) -> list[str]:
    """What a site was told of its federation's result and found to be signed by its server."""
    try:
        statement = parse_json(parse_json((folder / SIGNED).read_bytes())["statement"].encode())
        models = {str(name): str(model["sha256"]) for name, model in statement["models"].items()}
        about = f"federation {statement['federation']}, signed by its server on {str(statement['time'])[:10]}"
        return [about, *(f"its final {name}: sha256 {sha}" for name, sha in models.items())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{SIGNED} cannot be read"]


def site_report(folder: Path) -> SiteReport | None:
    """The report in a site's folder; None where there is none."""
    path = folder / "report.json"
    try:
        content = parse_json(path.read_bytes())
        validator(SiteReport)(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FedekdError(f"cannot read {path}: {error}; move it away to do without") from None
    return cast("SiteReport", content)


def _report(content: Any) -> FederationReport:
    validator(dict[str, Any])(content)
    kinds = get_type_hints(FederationReport, include_extras=True)
    known = {name: value for name, value in content.items() if name in kinds}
    for name, value in known.items():
        try:
            validator(kinds[name])(value)
        except Invalid as wrong:
            raise wrong.at(name) from None
    return FederationReport(**known)
