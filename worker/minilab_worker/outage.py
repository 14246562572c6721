"""How long a worker waits for a Redis that is unavailable or refuses writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import redis

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.outage import Outage
from minilab_gen.protocol.refusals import refusal, refuses_writes

_log = logging.getLogger(__name__)

REDIS_LIMIT = 60.0
"""Seconds that Redis may be unavailable before the worker gives up; until then jobs keep their tokens."""

HURRIED_LIMIT: Final = 2.0
"""Seconds that it may be unavailable when the worker is to exit at once: a broken connection is made anew, no more."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds between attempts: they double from the first to the longest, so that a restart is bridged at once."""


class RedisOutage(Outage):
    """The outages that one thread of a worker meets, with the lines that say so."""

    def __init__(self, what_waits: str) -> None:
        super().__init__(REDIS_LIMIT, FIRST_PAUSE, LONGEST_PAUSE)
        self.what_waits = what_waits

    def pause_after(self, error: redis.RedisError, *, hurry: bool = False) -> float:
        """Seconds until the next attempt. Raises RedisUnavailableError when Redis was unavailable for too long."""
        if self.failed():
            _log.warning("Redis %s, %s wait: %s", _behaviour(error), self.what_waits, _reason(error))
        if self.is_too_long(HURRIED_LIMIT if hurry else None):
            lasted = f"given up after {self.seconds:.0f} s"
            raise RedisUnavailableError(f"Redis {_behaviour(error)}, {lasted}: {_reason(error)}") from error
        return self.next_pause()

    def is_over(self) -> None:
        """An attempt succeeded: Redis is back, or was never unavailable."""
        lasted = self.succeeded()
        if lasted is not None:
            _log.warning("Redis is back after %.1f s, %s continue", lasted, self.what_waits)


def insist(ask: Callable[[], None]) -> None:
    """Ask something of Redis, again and again while connections break. Raises RedisUnavailableError in the end."""
    outage = RedisOutage("checks before serving")
    while True:
        try:
            ask()
        except redis.AuthenticationError:  # to redis-py this is a broken connection, too
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            time.sleep(outage.pause_after(error))
        else:
            outage.is_over()
            return


def wait_for_writes(connection: redis.Redis) -> None:
    """Return once Redis takes a write. Raises RedisUnavailableError when it has refused all of them for too long."""
    outage = Outage(REDIS_LIMIT, FIRST_PAUSE, LONGEST_PAUSE)
    while error := _refusal_of_writes(connection):
        why, begins = "; ".join(refusal(error, connection)), outage.failed()
        if outage.is_too_long():
            raise RedisUnavailableError(f"{why} (given up after {outage.limit:.0f} s)") from error
        if begins:
            _log.warning("waiting up to %.0f s for a Redis that takes writes: %s", outage.limit, why)
        time.sleep(outage.next_pause())


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
    return "is unavailable" if away else "refuses what is asked"
