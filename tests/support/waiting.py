"""Waiting for a condition, with a limit: tests never sleep for a guess."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 30.0
"""Seconds after which a condition that has not come true is a failure; far above what a slow machine needs."""


def wait_until(condition: Callable[[], object], limit: float = LIMIT, pause: float = 0.005) -> None:
    """Return as soon as the condition holds; fail when it does not within the limit. All in seconds."""
    give_up = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < give_up, f"waited {limit} s for {condition}"
        time.sleep(pause)
