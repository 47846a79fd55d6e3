"""A process that trains keeps the memory that its steps free."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
from fedekd.engines.freed_memory import keep_freed_memory
keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [b"x" * (16 * 2**20) for _ in range(8)]
    del step
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's setting")
def test_a_later_step_asks_the_system_for_no_new_pages():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    first, *later = map(int, done.stdout.split())
    assert max(later) < first / 10
