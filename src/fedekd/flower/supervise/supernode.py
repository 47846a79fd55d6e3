"""Flower's SuperNode, more often in touch: it asks again after a second, and says every few that it is there.

Flower's own waits three seconds between two questions, which is most of a short round, looks for its app's answer
twice a second, and is counted as there for a minute after it was killed, in which it is not let in again. Why an
attempt to reach the server failed it does not log.

    python -m fedekd.flower.supervise.supernode ARGUMENTS OF flower-supernode
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

PAUSE = 1.0  # seconds before it asks the server again
LOOK = 0.1  # seconds between two looks at what is on this machine
BEAT = 10  # seconds, the least that Flower allows; after two of them without a sign the site counts as away


def main() -> None:
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    patched: tuple[Any, ...] = (start_client_internal, heartbeat, fleet_http_connection)
    patched[0].time = SimpleNamespace(sleep=lambda seconds: time.sleep(PAUSE if seconds > PAUSE else LOOK))
    patched[2].make_simple_http_retry_invoker = telling(patched[2].make_simple_http_retry_invoker)
    for module in patched[1:]:
        module.HEARTBEAT_DEFAULT_INTERVAL = BEAT
    flower_supernode()
    os._exit(1)  # the connection is lost, and Flower's thread for its local HTTP server would never end


def telling(make: Callable[[], Any]) -> Callable[[], Any]:
    """Have what Flower tries again with log the reason of each failure before it is dealt with."""
    from flwr.supercore import log
    from httpx import TransportError

    def made() -> Any:
        invoker = make()
        hopeless = invoker.should_giveup

        def told(error: Exception) -> bool:
            what = "Connection attempt failed" if isinstance(error, TransportError) else "Request refused"
            log(logging.WARNING, "%s: %s", what, " ".join(str(error).split()) or type(error).__name__)
            return bool(hopeless(error))

        invoker.should_giveup = told
        return invoker

    return made


if __name__ == "__main__":
    main()
