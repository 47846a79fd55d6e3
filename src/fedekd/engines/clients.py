"""The clients of a job, made one by one as they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from torch import nn

from fedekd.engines.client import Client
from fedekd.engines.job import Job, Rows


class Clients:
    """A client is made when its turn first comes, so memory grows with those that have taken part.

    Whoever has not is as it began. It is made again each time that it is ``seen``, with models that others of the same
    start are seen with too.
    """

    def __init__(self, job: Job, first: int, rows: Rows) -> None:
        """``first``: the number of the first client in the random streams."""
        self.job, self.first, self.rows = job, first, rows
        self.made: dict[int, Client] = {}
        self.starts: dict[tuple[tuple[str, int], ...], dict[str, nn.Module]] = {}  # see Job.like_clients
        self.round = 0
        self.answering: ExitStack | None = None
        """Whether clients are as they answer, and what undoes that."""

    def __len__(self) -> int:
        return len(self.job.federation.clients)

    def __iter__(self) -> Iterator[Client]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, position: int) -> Client:
        """A client that is kept, as one that trains must be."""
        k = range(len(self))[position]
        if k not in self.made:
            self.made[k] = self._make(k)
            if self.answering:
                self.answering.enter_context(self.made[k].personalised())
        return self.made[k]

    def _make(self, k: int, own: dict[str, nn.Module] | None = None) -> Client:
        client = Client(self.job, k, self.first + k, self.rows, own)
        client.round = self.round
        return client

    @contextmanager
    def seen(self, k: int) -> Iterator[Client]:
        """A client to read from; one that has never trained is not kept."""
        client = self.made.get(k)
        if client is None:
            like = self.job.like_clients(self.first + k)
            client = self._make(k, self.starts.get(like))
            if self.first + k not in dict(like).values():  # else it may be the only one that begins so
                self.starts[like] = client.models
        with client.personalised() if self.answering else nullcontext():
            yield client

    def after(self, round: int) -> None:
        """Tell all clients how many rounds are done."""
        self.round = round
        for client in self.made.values():
            client.round = round

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """All as they answer. What is measured and kept inside is of one and the same personalisation.

        Those that have never taken part are made and personalised each time that they are seen.
        """
        with ExitStack() as stack:
            for client in self.made.values():
                stack.enter_context(client.personalised())
            self.answering = stack
            try:
                yield
            finally:
                self.answering = None
