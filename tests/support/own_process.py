"""A process of a test's own, which does not outlive it. It must not hold a test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start it; killed at the end if it still runs. ``Popen`` as a context manager would wait for it, for ever."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
