"""Sites that do their work and then send something else."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedekd.flower import client_app
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.wire import Packed, Payload

nan, shape = ClientApp(), ClientApp()


def altered(message: Message, context: Context, change) -> Message:
    payload = wire.from_records(client_app.visit(message, context).content)
    models = {role: Packed(p.how, change(dict(p.arrays)), p.scales) for role, p in payload.models.items()}
    return Message(wire.to_records(Payload(payload.words, models)), reply_to=message)


@nan.train()
def with_nan(message: Message, context: Context) -> Message:
    return altered(message, context, lambda arrays: {k: np.full_like(a, np.nan) for k, a in arrays.items()})


@shape.train()
def with_other_shapes(message: Message, context: Context) -> Message:
    return altered(message, context, lambda arrays: {k: a[..., :-1].copy() for k, a in arrays.items()})


for app in (nan, shape):
    app.query("join")(client_app.join)
    app.query("end")(client_app.end)
