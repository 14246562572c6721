"""How long something has been unavailable, when to try again, when to give up. It does no I/O and does not sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


class Outage:
    """The outages that one caller meets, one after another; its pauses double from the first to the longest."""

    def __init__(self, limit: float, first: float, cap: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``limit``: seconds that an outage may last. ``first`` and ``cap``: seconds of the first and longest pause."""
        self.limit = limit
        self._first, self._cap, self._clock = first, cap, clock
        self._since: float | None = None
        self._pause = first
        self._before = 0.0
        self.count = 0
        """Outages so far, with the present one."""

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """How long the present outage has lasted; 0 without one."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def seconds_before(self) -> float:
        """How long the outages that are over lasted together."""
        return self._before

    def failed(self) -> bool:
        """An attempt failed; True for the first one of an outage."""
        begins = self._since is None
        if begins:
            self._since, self._pause = self._clock(), self._first
            self.count += 1
        return begins

    def is_too_long(self, limit: float | None = None) -> bool:
        """Whether the present outage has lasted for longer than ``limit`` seconds, by default its own."""
        return self.is_on and self.seconds > (self.limit if limit is None else limit)

    def next_pause(self) -> float:
        """Seconds until the next attempt."""
        pause = self._pause
        self._pause = min(2 * pause, self._cap)
        return pause

    def succeeded(self) -> float | None:
        """An attempt succeeded; gives the seconds of the outage that is over now, None where there was none."""
        if self._since is None:
            return None
        lasted = self.seconds
        self._before += lasted
        self._since = None
        return lasted
