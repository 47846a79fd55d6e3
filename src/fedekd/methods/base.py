"""What a method is: a frozen dataclass of hyper-parameters whose ``steps`` read as its paper's algorithm.

A round is a sequence of four kinds of step: ``Train`` a role's model with a loss, ``Copy`` one role's weights into
another's, let each client ``Remember`` something, and ``Exchange`` something with the server. A method knows losses and
what is exchanged; it knows nothing of devices, seeds, files or how many clients run at once. Its functions must be
pure, so that an engine may call them client by client or map them over a stack of clients (``torch.func.vmap``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedekd.methods.batch import Batch
    from fedekd.methods.twins import Teaching
    from fedekd.methods.uploads import Uploads

    Tree = Mapping[str, Tensor]  # a model's trainable weights by name, or anything else that is exchanged
    Loss = Tensor | tuple[Tensor, dict[str, Tensor]]
    Part = Callable[[nn.Module], Collection[str]]  # which of a model's weights and buffers, by name; see fedekd.parts

RENAMED = {"anchors": "reads_weights", "draws": "uniforms"}  # by which a user's class may still call them
SPLITS = ("train", "val", "public")  # the test rows are for nothing but the test


@dataclass(frozen=True)
class Train:
    """Train ``roles`` for the local epochs with fresh optimiser state; ``frozen`` roles are only evaluated.

    The loss returns a scalar, or a scalar and per-sample diagnostics ({"trust": weights} is logged). Weights outside of
    ``part`` stay as they are. With ``gradients`` the mean gradient over all steps can be read afterwards. With
    ``mixed`` all roles, frozen ones too, see each row mixed with another of the client's; such a row has no target.
    """

    roles: tuple[str, ...]
    loss: Callable[[Batch], Loss]
    frozen: tuple[str, ...] = ()
    part: Part | None = None
    split: str = "train"
    epochs: int | None = None  # None, as for the two below: what the user has set
    lr: float | None = None
    optimizer: str | None = None
    gradients: bool = False
    mixed: bool = False


@dataclass(frozen=True)
class Remember:
    """Each client computes tensors that it keeps; they never leave it.

    With ``split`` the batch holds that whole split and the outputs of ``roles`` on it.
    """

    compute: Callable[[Batch], dict[str, Any]]
    split: str | None = None
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Give ``target`` the weights of another role, or those that a function makes; only a ``part`` of them if given."""

    source: str | Callable[[Batch], Tree]
    target: str
    part: Part | None = None


@dataclass(frozen=True)
class Exchange:
    """Send something through the door under a name, combine what arrived, and give the result to every client.

    Without ``send``, the model of the role of that name travels, or ``part`` of it, and comes back as the mean. With
    it, what ``send`` makes of a batch travels: {name: tensor}, with shapes that do not depend on the client's rows; the
    batch holds the whole ``split`` and the outputs of ``roles`` on it, as in ``Remember``. ``combine`` turns uploads
    into a result and the server's new memory. The result is loaded into the role ``into`` (a model's own, if a model
    was sent), or is read from ``batch.received[name]``. With ``each`` there is one for each client: a tree with a
    row for each upload, or a list of trees. ``refine`` trains a combined model on public rows before it is handed out.
    A ``combine`` that is ``mean_only`` reads no single upload, so that a server that sees only sums can run it too.
    """

    name: str
    combine: Callable[[Uploads], tuple[Any, Any]] | None = None
    part: Part | None = None
    send: Callable[[Batch], Tree] | None = None
    split: str | None = None
    roles: tuple[str, ...] = ()
    into: str | None = None
    each: bool = False
    refine: Train | None = None
    mean_only: bool = False

    @property
    def target(self) -> str | None:
        """The role that the result is loaded into."""
        return self.into or (None if self.send else self.name)


Step = Train | Remember | Copy | Exchange


@dataclass(frozen=True)
class ClientInit:
    """What a client knows before the first round."""

    weights: Mapping[str, Tree]
    features: Mapping[str, int]  # by role: width of the features, if the method asked for them
    seed: int
    targets: Tensor  # of the training rows


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses with a docstring whose first line describes them."""

    name: ClassVar[str] = ""  # this and the next three are what it was registered with
    family: ClassVar[str] = ""  # what `--methods` may call it together with others
    cite: ClassVar[str] = ""  # authors, venue and year
    also: ClassVar[str] = ""  # another group that it belongs to
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    roles: ClassVar[tuple[str, ...]] = ("private",)
    like: ClassVar[Mapping[str, str]] = {}  # roles of another's architecture, start and batches
    heads: ClassVar[Mapping[str, str]] = {}  # roles that are a linear layer, from zero, on another's constant features
    reads_weights: ClassVar[tuple[str, ...]] = ()  # roles whose weights, current and received, its functions read
    answers: ClassVar[tuple[str, ...]] = ("private",)  # roles whose outputs `predict` reads
    uniforms: ClassVar[int] = 0  # random numbers in [0, 1) for each sample, which the losses read
    public: ClassVar[str] = ""  # "rows" or "labels": what it needs of public rows
    stacks: ClassVar[bool] = True  # False: its functions cannot be mapped over clients
    keeps_rows: ClassVar[bool] = False  # True: what it answers from holds training rows
    twin: ClassVar[str] = ""  # this and the next two are a twin's: see fedekd.methods.twins
    teaching: ClassVar[Teaching | None] = None
    original: ClassVar[type[Method] | None] = None

    def steps(self, round: int) -> tuple[Step, ...]:
        """What happens in a round, in this order; rounds are numbered from 0."""
        raise NotImplementedError(f"{type(self).__name__} needs steps(self, round)")

    def begin(self, client: ClientInit) -> dict[str, Any]:
        """The client's memory before the first round."""
        return {}

    def personalise(self) -> tuple[Train | Remember | Copy, ...]:
        """What each client does before it predicts, on a copy: the state that travels is left alone."""
        return ()

    def predict(self, batch: Batch) -> Tensor:
        """The client's outputs for these rows, whose targets it does not know."""
        return batch.outputs["private"]

    def examine(self, batch: Batch) -> dict[str, Tensor] | None:
        """Each sample's "energy" and "trust" for the report; None for a method without a gate."""
        return None

    @property
    def needs_features(self) -> bool:
        return bool(self.heads)

    @property
    def drawn(self) -> int:
        """How many of the ``uniforms`` are drawn in training: a variant whose losses read none may do without."""
        return self.uniforms

    def root(self, role: str) -> str:
        """The role whose architecture, start and batches it has."""
        return self.like.get(role, role)

    def check(self, task: str) -> None:
        """Raise for hyper-parameters or a task that the method does not fit."""
        if task not in self.tasks:
            raise FedekdError(f"method {self.name!r} is defined for {' and '.join(self.tasks)}, not for {task}")
        own = {field_.name for field_ in fields(self)}
        for old, new in RENAMED.items():
            if hasattr(type(self), old) and old not in own:
                raise FedekdError(f"method {self.name!r}: `{old}` is called `{new}` now; rename it in the class")
        for field_ in fields(self):
            value, what = getattr(self, field_.name), f"{self.name or type(self).__name__.lower()}.{field_.name}"
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                if type(field_.default) in (int, float):
                    raise FedekdError(f"{what} must be a number, got {value!r}")
                continue
            low, open_low = field_.metadata.get("low", 0), field_.metadata.get("open", False)
            high = field_.metadata.get("high", float("inf"))
            if not (value > low if open_low else value >= low) or value > high or value == float("inf"):
                bound = f"{'>' if open_low else '>='} {low} and {'finite' if high == float('inf') else f'<= {high}'}"
                raise FedekdError(f"{what} must be {bound}, got {value}")


def exchanges(method: Method, rounds: int) -> dict[str, Exchange]:
    """What a method exchanges, by name: the first exchange of each."""
    found: dict[str, Exchange] = {}
    for round in range(rounds):
        for step in method.steps(round):
            if isinstance(step, Exchange):
                found.setdefault(step.name, step)
    return found


def shared_roles(method: Method, rounds: int) -> frozenset[str]:
    """The roles whose models, or parts of them, a method sends."""
    return frozenset(name for name, step in exchanges(method, rounds).items() if step.send is None)
