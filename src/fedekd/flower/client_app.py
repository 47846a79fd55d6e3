"""The app at a site, as Flower knows it: a message in, the site's answer out, and never an exception's text."""

from __future__ import annotations

import logging

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.settings import read_site
from fedekd.flower.site.handlers import answer
from fedekd.flower.supervise.logs import log_to

app = ClientApp()
log = logging.getLogger("fedekd.site")


@app.query("join")
def join(message: Message, context: Context) -> Message:
    return _answered("join", message, context)


@app.train()
def visit(message: Message, context: Context) -> Message:
    return _answered("visit", message, context)


@app.query("masking")
def masking(message: Message, context: Context) -> Message:
    return _answered("masking", message, context)


@app.query("end")
def end(message: Message, context: Context) -> Message:
    return _answered("end", message, context)


def _answered(kind: str, message: Message, context: Context) -> Message:
    try:
        payload = _answer(kind, message, context)
    except (Exception, SystemExit):  # a user's model may even try to end the process
        log.exception("fault outside of the work itself")
        payload = Payload({"code": int(StatusCode.FAULT)})
    return Message(wire.to_records(payload), reply_to=message)


def _answer(kind: str, message: Message, context: Context) -> Payload:
    site = read_site(str(context.node_config["site-file"]))
    log_to(site.state / "log")
    if site.threads:
        torch.set_num_threads(site.threads)
    try:
        request = wire.from_records(message.content)
    except FedekdError:
        request = None
    return answer(site, kind, request)
