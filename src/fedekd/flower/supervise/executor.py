"""What runs a site's share of a round: one process that has everything imported and forks a child for each message.

Flower would start Python and import torch anew for every message, and would run whatever code the server's bundle
holds. This process takes the SuperNode's tasks instead (``--isolation process``), and runs the site's own installed
app for each of them: what code runs at a site is decided at the site.

    python -m fedekd.flower.supervise.executor --address HOST:PORT --secret FILE [--app package.module:attribute]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from fedekd.flower import patches
from fedekd.flower.supervise.processes import end_with
from fedekd.objects import import_object

OWN_APP = "fedekd.flower.client_app:app"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run this site's app for each message that its SuperNode receives.")
    parser.add_argument("--address", required=True, help="of the SuperNode's runtime API")
    parser.add_argument("--secret", required=True, help="file with the secret shared with the SuperNode")
    parser.add_argument("--app", default=OWN_APP, help="(default: %(default)s)")
    given = parser.parse_args()

    app = import_object(given.app, "app")

    from flwr.supercore.superexec import run_superexec
    from flwr.supernode.runtime import run_clientapp  # noqa: F401  (for the children)

    patches.patch_executor(ForkingExecutor(app))
    secret = Path(given.secret).read_bytes()
    run_superexec.run_superexec(given.address, insecure=True, superexec_auth_secret=secret)


class ForkingExecutor:
    """Flower's executor protocol, with a fork for each ClientApp task. Any other kind of task stays where it is."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def get_eligible_capacity(self, supported: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        from flwr.supercore.constant import TaskType

        return supported & {TaskType.CLIENT_APP}, set()

    def launch(self, spec: Any) -> Any:
        from flwr.supercore.superexec.executor import LaunchResult

        parent = os.getpid()
        if os.fork() == 0:
            try:
                end_with(parent)
                run_task(self.app, spec)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # reached only if Flower's own exit was not: never fall back into the parent's loop
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Called every time the queue is looked at: bury the children that ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        pass


def run_task(app: Any, spec: Any) -> None:
    """In the child: Flower's own handling of one message, with our app in place of the bundle's."""
    from flwr.supernode.runtime import run_clientapp

    patches.patch_clientapp(app)
    try:
        run_clientapp.run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=True,
            parent_pid=spec.parent_pid,
            runtime_dependency_install=False,
        )
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
