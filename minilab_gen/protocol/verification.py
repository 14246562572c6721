"""Has workers compute jobs again and compares with what their streams hold. It must not know torch.

A worker gets the same request under a new id; what comes of that is removed once it is compared.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import redis
from rq.job import Job
from rq.results import Result

from minilab_gen.errors import MiniLabError, StreamError, UnknownJobError
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.comparison import Answer, Difference, first_difference
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import enqueue, fetch, recorded_state
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.repeats import asked_by
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.tail import OnWait, tail

MARK: Final = "verify-"
"""What the ids of verification jobs begin with."""

AT_ONCE: Final = 32
"""Jobs that are computed again at a time: enough to fill half the places of a worker, so that others get on, too."""

_TTL: Final = 3600
"""Seconds that a verification job may wait: if its client is killed, nobody misses it."""

_RECORD_SECONDS: Final = 30.0
"""Seconds for a worker to write an end into RQ's books, or for another to do it in place of a dead one."""

_PAUSE: Final = 0.01
"""Seconds between two looks at those books, where the end usually stands within a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one job."""

    job_id: str
    equal: bool
    tokens: int
    """Tokens that were compared and are equal, from the first on."""
    told: str
    """In words."""
    difference: Difference | None = None


def verify(
    connection: redis.Redis, job_ids: Iterable[str], priority: Priority, on_wait: OnWait | None = None
) -> Generator[Verdict | MiniLabError, None, None]:
    """Verify jobs, several at a time, in their order; an error in place of a verdict where one is not to be had.

    Whoever stops in the middle leaves no verification job behind. Raises what redis-py raises.
    """
    under_way: deque[_Recomputation | Verdict | MiniLabError] = deque()
    try:
        for job_id in job_ids:
            under_way.append(_begin(connection, job_id, priority))
            if len(under_way) >= AT_ONCE:
                yield _outcome(under_way[0], on_wait)
                under_way.popleft()
        while under_way:
            yield _outcome(under_way[0], on_wait)
            under_way.popleft()
    finally:
        for begun in under_way:
            if isinstance(begun, _Recomputation):
                begun.abandon()


def _begin(connection: redis.Redis, job_id: str, priority: Priority) -> _Recomputation | Verdict | MiniLabError:
    try:
        asked = asked_by(connection, job_id)
        tokens, end = published_tokens(connection, job_id)
        if end is None:
            raise UnknownJobError(f"unknown or expired job: {job_id}")
    except StreamError as error:
        return Verdict(job_id, False, 0, str(error))
    except MiniLabError as error:
        return error
    if not tokens and not end.succeeded:
        return Verdict(job_id, True, 0, f"equal: it ended without a token ({end.reason})")
    # Of one that was stopped, only as far as it came.
    request = asked.request if end.succeeded else replace(asked.request, max_new_tokens=len(tokens))
    own_id = f"{MARK}{secrets.token_hex(8)}"
    submission = replace(asked.submission, job_id=own_id, priority=priority, ttl=_TTL)
    try:
        enqueue(connection, request, submission)
    except MiniLabError as error:
        return error
    return _Recomputation(connection, job_id, own_id, Answer(tokens, end))


def _outcome(begun: _Recomputation | Verdict | MiniLabError, on_wait: OnWait | None) -> Verdict | MiniLabError:
    return begun.finish(on_wait) if isinstance(begun, _Recomputation) else begun


class _Recomputation:
    """A job that is being computed again."""

    def __init__(self, connection: redis.Redis, job_id: str, own_id: str, stored: Answer) -> None:
        self._connection = connection
        self._job_id, self._own_id, self._stored = job_id, own_id, stored

    def finish(self, on_wait: OnWait | None) -> Verdict | MiniLabError:
        """Wait for the answer, compare, and remove it."""
        try:
            events = list(tail(self._connection, self._own_id, on_wait=on_wait))
            verdict = self._judge(Answer([event for event in events if isinstance(event, TokenEvent)], _end_of(events)))
        except (UnknownJobError, StreamError) as error:
            return error
        with contextlib.suppress(UnknownJobError):  # it has gone by itself
            self._remove()
        return verdict

    def abandon(self) -> None:
        """Stop it and remove what there is of it. While Redis is away it is left to expire."""
        with contextlib.suppress(redis.RedisError, MiniLabError):
            endings.cancel(self._connection, self._own_id)
            self._remove()

    def _judge(self, recomputed: Answer) -> Verdict:
        made_by, checked_by = self._fingerprint(self._job_id), self._fingerprint(self._own_id)
        if made_by and checked_by and made_by != checked_by:
            told = f"made by the model {made_by}, computed again by {checked_by}: to compare them means nothing"
            return Verdict(self._job_id, False, 0, told)
        difference = first_difference(self._stored, recomputed)
        end = recomputed.end
        if not end.succeeded and (difference is None or difference.recomputed is None):
            told = f"it could not be computed again: {end.error or end.reason} after {end.tokens} tokens"
            return Verdict(self._job_id, False, end.tokens, told)
        count = len(self._stored.tokens)
        if difference is not None:
            equal = count if difference.token is None else difference.token - 1
            return Verdict(self._job_id, False, equal, difference.told, difference)
        as_far = "" if self._stored.end.succeeded else f", as far as it came ({self._stored.end.reason})"
        return Verdict(self._job_id, True, count, f"equal: {count} token{'' if count == 1 else 's'}{as_far}")

    def _fingerprint(self, job_id: str) -> str:
        """That of the model that ran a job; empty for one that an ordinary RQ worker ran."""
        field: Any = self._connection.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
        return (field or b"").decode(errors="replace")

    def _remove(self) -> None:
        """Take the job out of Redis, once no worker will write about it any more."""
        give_up = time.monotonic() + _RECORD_SECONDS
        while recorded_state(fetch(self._connection, self._own_id)) in ("queued", "started"):
            if time.monotonic() > give_up:
                return  # it expires within a day
            time.sleep(_PAUSE)
        with self._connection.pipeline(transaction=True) as pipeline:
            for key_of in (keys.token_stream, keys.cancel_flag, Job.key_for, Result.get_key):
                pipeline.expire(key_of(self._own_id), 0)  # DEL is not for the client's user of docs/security.md
            pipeline.execute()


def _end_of(events: list[Any]) -> EndEvent:
    end = events[-1]
    assert isinstance(end, EndEvent), "a tail must end with the end of its job"
    return end
