"""What goes with secure aggregation and what does not."""

from __future__ import annotations

from typing import Any

from fedekd.errors import FedekdError

AGGREGATIONS = ("plain", "secure")
LEAST_MASKED = 3  # uploads in a sum: of two, each site could work out the other's
MASKING_WAIT = 300.0  # seconds for a message without training in it
MASKING_STAGES = 4  # such messages in a visit


def check_secure(server: Any, where: str = "") -> None:
    """What a server that sees only sums cannot do; of its settings, or of the terms that it offers."""
    wanted = {"combine": "mean", "weighting": "uniform", "compression": "none"}
    for name, value in wanted.items():
        if getattr(server, name) != value:
            raise FedekdError(
                f'{where}aggregation = "secure" needs {name} = "{value}", got "{getattr(server, name)}": the server '
                "sees only the sum of what sites send"
            )
    if getattr(server, "min_sites", LEAST_MASKED) < LEAST_MASKED:
        raise FedekdError(
            f'{where}aggregation = "secure" needs min_sites of at least {LEAST_MASKED}, got {server.min_sites}: of a '
            "sum of two, each site could work out what the other sent"
        )
    if not 1e-6 <= server.mask_limit <= 1e6:
        raise FedekdError(f"{where}mask_limit must be from 1e-6 to 1e6, got {server.mask_limit:g}")
    if not 0.5 <= server.mask_threshold < 1:
        raise FedekdError(f"{where}mask_threshold must be at least 0.5 and below 1, got {server.mask_threshold:g}")
