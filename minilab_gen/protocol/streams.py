"""Writing token streams: every entry once, in order, never without an expiry. It must not know about models.

Writes are safe to send again: an entry's id is its token's number, so Redis refuses what it already holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import redis

from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent, decode_entry, entry_id

_REFUSED_REPEAT = "equal or smaller"
"""Part of Redis's answer to an XADD whose id is not above the last one."""


def publish(connection: redis.Redis, entries: Iterable[tuple[str, Event]], *, running_ttl: int) -> None:
    """Append events to the streams of their jobs in one round trip.

    A stream's first entry brings ``running_ttl`` seconds of life with it, and its terminal entry sets the retention,
    in the same transaction: a worker that dies between two commands leaves no stream that stays for ever.
    Raises StreamError for a stream that holds something else, and what redis-py raises.
    """
    with connection.pipeline(transaction=True) as pipeline:
        expected_refusals = []
        for job_id, event in entries:
            key = keys.token_stream(job_id)
            pipeline.xadd(key, event.to_fields(), id=entry_id(event.number))  # type: ignore[arg-type]
            expected_refusals.append(True)
            if isinstance(event, EndEvent):
                pipeline.expire(key, keys.RETENTION)
                expected_refusals.append(False)
            elif event.number == 1:
                pipeline.expire(key, running_ttl)
                expected_refusals.append(False)
        answers = pipeline.execute(raise_on_error=False)
    for answer, may_be_refused in zip(answers, expected_refusals, strict=True):
        if isinstance(answer, Exception) and not (may_be_refused and _REFUSED_REPEAT in str(answer)):
            raise answer


def read_stream(connection: redis.Redis, job_id: str) -> list[Event]:
    """Everything that a job's stream holds now. Raises StreamError where a number is missing."""
    raw = connection.xrange(keys.token_stream(job_id))
    events = [decode_entry(entry) for entry in raw]
    check_unbroken(events, after=0)
    return events


def published_tokens(connection: redis.Redis, job_id: str) -> tuple[list[TokenEvent], EndEvent | None]:
    """The tokens in a job's stream, and its terminal entry if it has one."""
    events = read_stream(connection, job_id)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    end = events[-1] if events and isinstance(events[-1], EndEvent) else None
    return tokens, end


def check_unbroken(events: Sequence[Event], after: int) -> None:
    """Raise StreamError unless the events carry the numbers after ``after``, one by one."""
    for expected, event in enumerate(events, start=after + 1):
        if event.number != expected:
            missing = f"{expected}" if event.number == expected + 1 else f"{expected} to {event.number - 1}"
            raise StreamError(f"the stream has a gap: token {missing} is missing")
