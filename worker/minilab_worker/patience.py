"""How long a worker bears it that Redis does not do what it is asked. It must not know what was asked."""

from __future__ import annotations

import logging
import time
from typing import Final

import redis

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.refusals import refusal, refuses_writes

_log = logging.getLogger(__name__)

REDIS_PATIENCE = 60.0
"""Seconds that Redis may be away before the worker gives up; until then runs keep their tokens."""

HURRIED_PATIENCE: Final = 2.0
"""Seconds that it may be away when the worker is to leave at once: a broken connection is made anew, no more."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between attempts: they double from the first to the longest, so that a restart is bridged at once."""


class Patience:
    """One caller's patience; it begins anew with each outage."""

    def __init__(self, what_waits: str) -> None:
        self.what_waits = what_waits
        self.outages = 0
        """How often Redis has been away."""
        self.seconds_away = 0.0
        """How long it was away in those that are over."""
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    @property
    def is_tried(self) -> bool:
        """Whether Redis is away, as far as the caller knows."""
        return self._since is not None

    def failed(self, error: redis.RedisError, *, hurry: bool = False) -> float:
        """Seconds until the next attempt. Raises RedisUnavailableError when Redis has been away for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._pause = now, FIRST_PAUSE
            self.outages += 1
            _log.warning("Redis %s, %s wait: %s", _behaviour(error), self.what_waits, _reason(error))
        away = now - self._since
        if away > (HURRIED_PATIENCE if hurry else REDIS_PATIENCE):
            raise RedisUnavailableError(
                f"Redis {_behaviour(error)}, given up after {away:.0f} s: {_reason(error)}"
            ) from error
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause

    def succeeded(self) -> None:
        """Redis is back, or was never away."""
        if self._since is not None:
            away = time.monotonic() - self._since
            self.seconds_away += away
            self._since = None
            _log.warning("Redis is back after %.1f s, %s go on", away, self.what_waits)


def wait_for_writes(connection: redis.Redis) -> None:
    """Return once Redis takes a write. Raises RedisUnavailableError when it has refused all of them for too long."""
    give_up, pause = time.monotonic() + REDIS_PATIENCE, FIRST_PAUSE
    while error := _refusal_of_writes(connection):
        why = "; ".join(refusal(error, connection))
        if time.monotonic() > give_up:
            raise RedisUnavailableError(f"{why} (given up after {REDIS_PATIENCE:.0f} s)") from error
        if pause == FIRST_PAUSE:
            _log.warning("waiting up to %.0f s for a Redis that takes writes: %s", REDIS_PATIENCE, why)
        pause = min(2 * pause, LONGEST_PAUSE)
        time.sleep(pause)


def _refusal_of_writes(connection: redis.Redis) -> redis.ResponseError | None:
    """With what Redis refuses any write. Asked without one: there is no such stream, and it shall not be made."""
    try:
        connection.xadd(keys.token_stream("start"), {"id": "1"}, nomkstream=True)
    except redis.ResponseError as error:
        if not refuses_writes(error):
            raise
        return error
    return None


def _reason(error: redis.RedisError) -> str:
    """With what to do about it, where that is known."""
    return "; ".join(refusal(error)) if refuses_writes(error) else str(error)


def _behaviour(error: redis.RedisError) -> str:
    """In words; full memory, a read-only replica and a server that loads are no lost connection."""
    away = isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.WatchError)
    return "is away" if away else "refuses what is asked"
