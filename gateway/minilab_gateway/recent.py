"""Answers that many requests ask for at once, kept for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by name, each as it was at most so many seconds ago. Threads may share it."""

    def __init__(self, seconds: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """At most ``most`` names are kept."""
        self._seconds, self._most, self._clock = seconds, most, clock
        self._known: dict[str, tuple[float, Value]] = {}

    def get(self, name: str, ask: Callable[[], Value]) -> Value:
        """The value of a name. What ``ask`` raises is not kept, and neither is a value that stands for false."""
        now = self._clock()
        asked_at, value = self._known.get(name, (None, None))
        if asked_at is not None and value is not None and now - asked_at < self._seconds:
            return value
        answer = ask()
        if answer:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[name] = now, answer
        return answer
