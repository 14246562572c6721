"""What holds a batch up, and is waited for: a lost Redis, a missing worker, a full queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import redis

from minilab_client.exit_codes import redis_complaint
from minilab_client.output import say
from minilab_gen.batch.pending_jobs import PendingJobs
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import start_command
from minilab_gen.protocol.jobs import workers_alive
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


QUIET_SECONDS: Final = 5.0
"""Seconds without an end after which it is looked at: most answers of a small model take less."""


class StallNotes:
    """One note for each reason, until it changes."""

    def __init__(self, connection: redis.Redis, queue: str, *, quiet: bool) -> None:
        self._connection, self._queue, self._quiet = connection, queue, quiet
        self._next = 0.0  # at once: that no worker serves the queue is known before anything can end
        self._said: str | None = None

    def look(self, pending: PendingJobs, *, any_ended: bool) -> None:
        """Say what holds the batch up, if it has been held up for a while."""
        if not any_ended and (pending.is_empty or time.monotonic() < self._next):
            return
        self._next = time.monotonic() + QUIET_SECONDS
        reason = None if any_ended else through_outages(lambda: self._reason(pending))
        if reason and reason != self._said and not self._quiet:
            say(f"waiting: {reason}")
        self._said = reason

    def _reason(self, pending: PendingJobs) -> str | None:
        if not workers_alive(self._connection, self._queue):
            model, _ = keys.queue_parts(self._queue) or (keys.DEFAULT_MODEL, "normal")
            return f"no worker serves the queue {self._queue}; start one in another terminal: {start_command(model)}"
        if pending.is_held_back:
            return "the queue holds as many jobs as --max-queued allows, or more"
        return None
