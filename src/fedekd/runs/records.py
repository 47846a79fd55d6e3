"""What a finished run leaves: a record in ``results.jsonl`` and details, or a failure in ``failures.jsonl``.

Version 1 had no ``version``. Fields may be added without a new version; one that changes or goes needs one, and a step
in ``upgrade``.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired, TypedDict, cast, get_args

from fedekd.errors import FedekdError
from fedekd.settings import ChosenBy
from fedekd.validation import Finite, Invalid, Some, validator

RECORD_VERSION: Final = 2


class ChosenRound(TypedDict):
    """A client at the round of its lowest validation loss."""

    round: int
    value: float
    val: float
    val_loss: float
    val_error: float | None


class ClientCurve(TypedDict):
    """A client's values by round, to six digits. Left out in runs with very many clients."""

    value: list[float]
    val: list[float]
    val_loss: list[float]
    round: NotRequired[list[int]]
    """After which it was measured, where that was not after each."""


class TestRows(TypedDict):
    """Which test rows were right, or what they were off by: see ``runs.packing``."""

    last: str
    """Of the answers that ``value`` is of."""
    chosen: NotRequired[str]
    """Where that is not the last round."""


class ClientRow(TypedDict):
    """One client's numbers. A method that diverges may leave NaN among ``local``, ``value`` and ``delta``; so does a
    metric that is not defined on the test rows.

    What is of validation rows is missing where a client has none. ``value``, ``val`` and ``val_loss`` are of the last
    round, or of the chosen one in a run with ``choose_rounds``.
    """

    id: str
    model: NotRequired[str]
    """Its private model, where that is not the default: one of `fedekd models`, or the user's factory or class."""
    n_train: int
    n_val: int
    n_test: int
    local: float
    value: float
    delta: float
    val: NotRequired[float]
    val_loss: NotRequired[float]
    val_error: NotRequired[float | None]
    """The standard error of ``val_loss``, None of a single row."""
    chosen: NotRequired[ChosenRound]
    curve: NotRequired[ClientCurve]
    rows: NotRequired[TestRows]
    groups: NotRequired[str]
    """Of each test row, the number of its group: see ``runs.packing``."""
    subgroups: NotRequired[str]
    """And of its subgroup, among the partition's names."""
    scores: NotRequired[dict[str, float | None]]
    """Every metric of the task, of the same answers as ``value``; None where it is not defined."""
    floor: NotRequired[float | None]
    """What ``metric`` would be with the commonest class, or the mean, of the training rows for an answer."""
    run: NotRequired[str]
    """The key of the run that this is of, where clients of several make up a record (``runs.best_of``)."""


class TrustRow(TypedDict):
    """A gate's trust weights in one round, over all clients or of one."""

    mean: float
    std: float
    histogram: Some[int]


class RoundTrust(TrustRow):
    round: int


class PublicPart(TypedDict, total=False):
    share: Finite
    rows: int
    file: str
    labelled: bool


class Subgroups(TypedDict):
    column: str
    names: list[str]


class Partition(TypedDict):
    kind: str
    alpha: Finite | None
    clients: int
    seed: int
    fingerprint: str
    fraction: NotRequired[Finite]
    """Of the training and validation rows, where they were thinned."""
    fixed: NotRequired[bool]
    """Whether the split has a seed of its own."""
    fold: NotRequired[int]
    """Which part of each client's rows is its test rows, where several runs test all of them between them.."""
    folds: NotRequired[int]
    """.. and of how many."""
    public: NotRequired[PublicPart]
    group: NotRequired[str]
    """The column of rows that belong together."""
    subgroups: NotRequired[Subgroups]


class Params(TypedDict):
    """The training's parameters; the method's own stand among them."""

    rounds: int
    epochs: int
    batch_size: NotRequired[int]
    lr: NotRequired[Finite]
    optimizer: NotRequired[str]
    weighting: NotRequired[str]
    precision: NotRequired[str]
    participation: NotRequired[Finite]
    choose_rounds: NotRequired[bool]


class Record(TypedDict):
    version: Literal[2]
    dataset: str
    alpha: Finite | None
    seed: int
    method: str
    label: str
    params: Params
    task: Literal["classification", "regression"]
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "nll", "ece", "rmse", "mae", "r2"]
    clients: Some[ClientRow]
    avg_delta: float
    worst_delta: float
    tail_delta: float
    mean: float
    worst: float
    bytes_up: int
    bytes_down: int
    seconds: Finite
    trust: list[RoundTrust]
    partition: Partition
    private: NotRequired[str]
    """The clients' private models, where they are not the default."""
    proxy: NotRequired[str]
    data: NotRequired[str]
    """The checksum of the user's own data."""
    code: NotRequired[str]
    """That of the user's own method."""
    versions: dict[str, str]
    finished: str
    key: str
    chosen_by: NotRequired[ChosenBy]
    """What chooses the best alone, where that is not the metric. Not in the file: see ``runs.choice_file``."""


Figure = Literal["avg_delta", "worst_delta", "tail_delta", "mean", "worst", "bytes_up", "bytes_down", "seconds"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
"""A record's numbers over all clients."""


class FailureRow(TypedDict):
    """Why a run of a study failed, or with an empty key why a dataset is not there."""

    key: str
    label: str
    dataset: str
    alpha: Finite | None
    seed: int | None
    error: str


class ClientsTrust(TypedDict):
    round: int
    clients: list[TrustRow | None]


class Traffic(TypedDict):
    up: int
    down: int


class Holdings(TypedDict):
    client: str
    counts: list[int]


class DoubtedSample(TypedDict):
    client: str
    row: int
    label: str | float
    private: str | float
    proxy: str | float
    energy: float
    trust: float
    image: str | None


class Reliability(TypedDict):
    """Figures for each tenth of the test samples, by rising energy."""

    energy: list[float]
    count: list[int]
    proxy: list[float | None]
    private: list[float | None]
    trust: list[float]


class Calibration(TypedDict):
    """A client's test rows by tenths of how sure it was: how many, how sure in the mean, and how many right."""

    count: list[int]
    sure: list[float]
    right: list[int]


class Details(TypedDict):
    """What a report shows beyond a run's record, in ``details/KEY.json``; lists are by round or by client."""

    curve: list[list[float]]
    rounds: NotRequired[list[int]]
    """Of the curve, where clients were not measured after each."""
    confusion: NotRequired[list[list[list[int]]]]
    """By client, true class and answer: how many test rows."""
    calibration: NotRequired[list[Calibration]]
    train_loss: NotRequired[list[list[float]]]
    trust: list[ClientsTrust]
    exchange: list[Traffic]
    private_bytes: int
    partition: list[Holdings]
    classes: NotRequired[list[str]]
    edges: NotRequired[list[float] | None]
    distrusted: list[DoubtedSample]
    reliability: Reliability | None


def read_record(line: Any, where: str) -> Record:
    """A line of ``results.jsonl`` as a record of the present version; ``where`` says its line and file."""
    if not isinstance(line, dict) or "key" not in line:
        raise FedekdError(f"{where} is not a record of a run; give the folder that a run or a study wrote")
    record = upgrade(line, where)
    return cast("Record", _checked(record, Record, where, "without that line the run is trained again"))


def upgrade(line: dict[str, Any], where: str) -> dict[str, Any]:
    """A record of an earlier version as the present one writes it."""
    version = line.get("version", 1)
    if type(version) is int and version > RECORD_VERSION:
        raise FedekdError(
            f"{where} is a record of version {version}, and this fedekd reads versions up to {RECORD_VERSION}; "
            "install the newer fedekd that wrote it"
        )
    return {**line, "version": RECORD_VERSION} if version == 1 else line


def read_failure(line: Any, where: str) -> FailureRow:
    return cast("FailureRow", _checked(line, FailureRow, where, "remove it to do without"))


def read_details(content: Any, where: str) -> Details:
    details = cast("Details", _checked(content, Details, where, remedy := "remove it to do without"))
    rounds = [[client for client in entry["clients"] if client] for entry in details["trust"]]
    bins = {len(client["histogram"]) for clients in rounds for client in clients}
    if len(bins) > 1 or len({len(entry["clients"]) for entry in details["trust"]}) > 1:
        raise FedekdError(f"{where} cannot be read: trust has rounds of different sizes; {remedy}")
    return details


def _checked(line: Any, kind: Any, where: str, remedy: str) -> Any:
    try:
        validator(kind)(line)
    except Invalid as wrong:
        raise FedekdError(f"{where} cannot be read: {wrong}; {remedy}") from None
    return line
