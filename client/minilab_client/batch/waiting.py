"""Says why no job of a batch ends, where that can be seen from outside."""

from __future__ import annotations

import time
from typing import Final

import redis

from minilab_client.batch.outages import through_outages
from minilab_client.batch.pending_jobs import PendingJobs
from minilab_client.output import say
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import start_command
from minilab_gen.protocol.jobs import workers_alive

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
