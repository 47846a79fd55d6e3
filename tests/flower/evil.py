"""A site that does its work and then sends something else."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedekd.flower import client_app
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.wire import Packed, Payload

nan = ClientApp()


@nan.train()
def with_nan(message: Message, context: Context) -> Message:
    payload = wire.from_records(client_app.visit(message, context).content)
    models = {
        role: Packed(p.how, {k: np.full_like(a, np.nan) for k, a in p.arrays.items()}, p.scales)
        for role, p in payload.models.items()
    }
    return Message(wire.to_records(Payload(payload.words, models)), reply_to=message)


nan.query("join")(client_app.join)
nan.query("end")(client_app.end)
