"""Calls to Redis that are made again while it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import redis

from minilab_client.exit_codes import redis_complaint
from minilab_client.output import say
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.outage import Outage

LONGEST_OUTAGE: Final = 600.0
"""Seconds that Redis may be away: a batch runs unattended, and a restart of its machine is over by then."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds between attempts: they double from the first to the longest, so that a restart is bridged at once."""

Result = TypeVar("Result")


def through_outages(work: Callable[[], Result]) -> Result:
    """Do something with Redis, and where the connection is lost do it again. Raises RedisUnavailableError in the end.

    Other refusals are raised as they come: waiting does not help against them.
    """
    outage = Outage(LONGEST_OUTAGE, FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        try:
            result = work()
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if outage.failed():
                say(f"{redis_complaint(error).partition(';')[0]}; waiting up to {LONGEST_OUTAGE:.0f} s for it")
            if outage.is_too_long():
                raise RedisUnavailableError(
                    f"Redis has been away for {outage.seconds:.0f} s; once it runs, the same command goes on"
                ) from error
        else:
            if (lasted := outage.succeeded()) is not None:
                say(f"Redis is back after {lasted:.0f} s")
            return result
        time.sleep(outage.next_pause())
