"""Busy processes beside a measurement, as a machine has them that does something else, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOOP: Final = """
import os, sys

while os.getppid() == int(sys.argv[1]):  # so that none outlives the benchmark, however that ends
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that only count, meanwhile."""
    command = [sys.executable, "-c", _LOOP, str(os.getpid())]
    loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
