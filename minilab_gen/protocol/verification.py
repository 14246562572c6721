"""Has workers compute jobs again and compares with what their streams hold.

A worker gets the same request under a new id. Once that is compared, or the caller stops, nothing of it is left: no
key, and no entry in RQ's registries. Only where the caller's process is killed, or Redis is lost, it expires instead.
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

from minilab_gen.errors import MiniLabError, RequestError, StreamError, UnknownJobError
from minilab_gen.protocol import endings, keys
from minilab_gen.protocol.comparison import Difference, EndedStream, first_difference
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch, queue_of, recorded_state
from minilab_gen.protocol.keys import Priority
from minilab_gen.protocol.original_request import original_request_of
from minilab_gen.protocol.results import read_prompt_logprobs
from minilab_gen.protocol.streams import published_tokens
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.tail import OnWait, tail

MARK: Final = "verify-"
"""What the ids of verification jobs begin with."""

AT_ONCE: Final = 32
"""Jobs that are computed again at a time: enough to fill half the slots of a worker, so that others get on, too."""

_TTL: Final = 3600
"""Seconds that a verification job may wait: if its client is killed, it expires."""

_RECORD_SECONDS: Final = 30.0
"""Seconds for a worker to record an end in RQ, or for another to do it after its lease expired."""

_PAUSE: Final = 0.01
"""Seconds between two looks at RQ's record, where the end usually stands within a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of one job."""

    job_id: str
    equal: bool
    tokens: int
    """Tokens that were compared and are equal, from the first on."""
    message: str
    """In words."""
    difference: Difference | None = None


def verify(
    connection: redis.Redis, job_ids: Iterable[str], priority: Priority, on_wait: OnWait | None = None
) -> Generator[Verification | MiniLabError, None, None]:
    """Verify jobs, several at a time, in their order; an error in place of a verification where one is not to be had.

    A caller that stops in the middle leaves no verification job behind. Raises what redis-py raises.
    """
    under_way: deque[_Begun] = deque()
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
        _abandon([begun for begun in under_way if isinstance(begun, _Recomputation)])


def _begin(connection: redis.Redis, job_id: str, priority: Priority) -> _Begun:
    try:
        original = original_request_of(connection, job_id)
        tokens, end = published_tokens(connection, job_id)
        if end is None:
            raise UnknownJobError(f"unknown or expired job: {job_id}")
        stored = EndedStream(tokens, end, read_prompt_logprobs(connection, job_id))
    except StreamError as error:
        return Verification(job_id, False, 0, str(error))
    except MiniLabError as error:
        return error
    if not tokens and not end.succeeded:
        return Verification(job_id, True, 0, f"equal: it ended without a token ({end.reason})")
    # Of one that was stopped, only as far as it came.
    request = original.request if end.succeeded else original.request.cut_to(len(tokens))
    submission = replace(original.submission, job_id=f"{MARK}{secrets.token_hex(8)}", priority=priority, ttl=_TTL)
    begun = _Recomputation(connection, job_id, submission, stored)
    try:
        enqueue(connection, request, submission)
    except MiniLabError as error:
        return error
    except BaseException:  # an interrupt may come after the job has reached its queue
        _abandon([begun])
        raise
    return begun


def _outcome(
    begun: _Recomputation | Verification | MiniLabError, on_wait: OnWait | None
) -> Verification | MiniLabError:
    return begun.finish(on_wait) if isinstance(begun, _Recomputation) else begun


def _abandon(begun: Iterable[_Recomputation]) -> None:
    """Stop and remove what is under way: all are asked to stop first, so that their workers are waited for once."""
    with contextlib.suppress(redis.RedisError):  # while Redis is away they are left to expire
        stopped = [recomputation for recomputation in begun if recomputation.stop()]
        deadline = time.monotonic() + _RECORD_SECONDS
        for recomputation in stopped:
            recomputation.remove(deadline)


class _Recomputation:
    """A job that is being computed again."""

    def __init__(self, connection: redis.Redis, job_id: str, submission: Submission, stored: EndedStream) -> None:
        """``submission`` is that of the job that computes ``job_id`` again."""
        assert submission.job_id is not None, "a verification names its job, to find it again"
        self._connection = connection
        self._job_id, self._own_id, self._stored = job_id, submission.job_id, stored
        self._queue = queue_of(connection, keys.queue_name(submission.model, submission.priority))

    def finish(self, on_wait: OnWait | None) -> Verification | MiniLabError:
        """Wait for the answer, compare, and remove it."""
        outcome: Verification | MiniLabError
        try:
            events = list(tail(self._connection, self._own_id, on_wait=on_wait))
            tokens = [event for event in events if isinstance(event, TokenEvent)]
            scores = read_prompt_logprobs(self._connection, self._own_id)
            outcome = self._judge(EndedStream(tokens, _end_of(events), scores))
        except (UnknownJobError, StreamError) as error:
            outcome = error
        self.remove(time.monotonic() + _RECORD_SECONDS)
        return outcome

    def stop(self) -> bool:
        """Have it end soon; whether there was such a job."""
        try:
            endings.cancel(self._connection, self._own_id)
        except UnknownJobError:
            return False
        except MiniLabError:  # its record is damaged, and can only be removed
            return True
        return True

    def remove(self, deadline: float) -> None:
        """Take the job out of Redis, once no worker will write about it any more.

        Where that is not so by the deadline, on the monotonic clock, it is left to expire within a day of its end.
        """
        while self._may_be_written_about():
            if time.monotonic() > deadline:
                return
            time.sleep(_PAUSE)
        queue = self._queue
        with self._connection.pipeline(transaction=True) as pipeline:
            for registry in (queue.finished_job_registry, queue.failed_job_registry, queue.canceled_job_registry):
                pipeline.zrem(registry.key, self._own_id)
            for key_of in (keys.token_stream, keys.prompt_logprobs, keys.cancel_flag, Job.key_for, Result.get_key):
                pipeline.expire(key_of(self._own_id), 0)  # DEL is not for the client's user of docs/security.md
            pipeline.execute()

    def _may_be_written_about(self) -> bool:
        try:
            return recorded_state(fetch(self._connection, self._own_id)) in ("queued", "started")
        except (UnknownJobError, RequestError):  # it has expired, or it is damaged
            return False

    def _judge(self, recomputed: EndedStream) -> Verification:
        made_by, checked_by = self._fingerprint(self._job_id), self._fingerprint(self._own_id)
        if made_by and checked_by and made_by != checked_by:
            message = f"made by the model {made_by}, computed again by {checked_by}: to compare them means nothing"
            return Verification(self._job_id, False, 0, message)
        difference = first_difference(self._stored, recomputed)
        end = recomputed.end
        if not end.succeeded and (difference is None or difference.recomputed is None):
            message = f"it could not be computed again: {end.error or end.reason} after {end.tokens} tokens"
            return Verification(self._job_id, False, end.tokens, message)
        count = len(self._stored.tokens)
        if difference is not None:
            equal = count if difference.token is None else difference.token - 1
            return Verification(self._job_id, False, equal, difference.message, difference)
        as_far = "" if self._stored.end.succeeded else f", as far as it came ({self._stored.end.reason})"
        scores = "" if self._stored.prompt_logprobs is None else ", and the logprobs of the prompt"
        message = f"equal: {count} token{'' if count == 1 else 's'}{scores}{as_far}"
        return Verification(self._job_id, True, count, message)

    def _fingerprint(self, job_id: str) -> str:
        """That of the model that ran a job; empty for one that an ordinary RQ worker ran."""
        field: Any = self._connection.hget(Job.key_for(job_id), keys.FINGERPRINT_FIELD)
        return (field or b"").decode(errors="replace")


_Begun = _Recomputation | Verification | MiniLabError
"""A job that is being computed again, or at once what came of it."""


def _end_of(events: list[Any]) -> EndEvent:
    end = events[-1]
    assert isinstance(end, EndEvent), "a tail must end with the end of its job"
    return end
