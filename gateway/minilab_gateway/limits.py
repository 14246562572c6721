"""What a key may ask of this process in a minute, and at once. Each process of a gateway counts for itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from minilab_gateway.api_keys import ApiKey
from minilab_gateway.errors import RETRY_SECONDS, ApiError

_MINUTE = 60.0


class Limits:
    """The requests and jobs of all keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # name: requests that are left, and when that was so
        self._jobs: Counter[str] = Counter()

    def count_request(self, key: ApiKey) -> None:
        """Raises ApiError where the minute's requests are used up; each is given back as its share of time passes."""
        if key.requests_per_minute is None:
            return
        now, most = self._clock(), key.requests_per_minute
        left, then = self._left.get(key.name, (float(most), now))
        left = min(float(most), left + (now - then) * most / _MINUTE)
        if left < 1:
            self._left[key.name] = left, now
            raise ApiError(
                429,
                f"the key {key.name} may send {most} requests a minute",
                code="rate_limit_exceeded",
                retry_after=(1 - left) * _MINUTE / most,
            )
        self._left[key.name] = left - 1, now

    def hold(self, key: ApiKey, count: int) -> Hold:
        """Count so many jobs until they are released. Raises ApiError where the key may not have so many at once."""
        if key.jobs is not None and self._jobs[key.name] + count > key.jobs:
            raise ApiError(
                429,
                f"the key {key.name} may have {key.jobs} jobs at once, got {self._jobs[key.name]} and {count} more",
                code="too_many_jobs",
                retry_after=RETRY_SECONDS,
            )
        return Hold(self._jobs, key.name, count)


class Hold:
    """Jobs that are counted."""

    def __init__(self, jobs: Counter[str], name: str, count: int) -> None:
        self._jobs, self._name, self._count = jobs, name, count
        jobs[name] += count

    def release(self) -> None:
        """Count them no more."""
        self._jobs[self._name] -= self._count
        self._count = 0
