"""Writing token streams: every entry once, in order, never without an expiry. It must not know about models.

Writes are safe to send again: an entry's id is its token's number, so Redis refuses what it already holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis

from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import checked_answers
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent, decode_entry, entry_id

REFUSED_REPEAT: Final = "equal or smaller"
"""Part of Redis's answer to an XADD whose id is not above the last one."""

NOT_HELD: Final = "NOTHELD"
"""How the answer begins to a terminal entry that a worker wants to write for a job that others have taken over."""

SEAL: Final = """
local entry = redis.pcall('XADD', KEYS[1], ARGV[1], unpack(ARGV, 4))
if type(entry) == 'table' and entry.err then return entry end
redis.call('XADD', KEYS[1], '18446744073709551615-0', 'end', '')
redis.call('XDEL', KEYS[1], '18446744073709551615-0')
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""
"""Lines of a script: write a terminal entry, set the expiry and seal the stream. With the largest number used up, Redis
refuses what a worker that stood still may want to write behind the end. KEYS[1]: the stream. ARGV: entry id, seconds to
live, one that is the script's own, fields."""

END_SCRIPT: Final = f"""
if KEYS[2] and not redis.call('ZSCORE', KEYS[2], ARGV[3]) then
  return redis.error_reply('NOTHELD the job is in the hands of another worker')
end
{SEAL}
return entry
"""
"""Ends a stream. KEYS: the stream; for a worker also the sorted set in which it stands while it holds the job. ARGV[3]:
its member there."""


def publish(connection: redis.Redis, entries: Iterable[tuple[str, Event]], *, running_ttl: int) -> None:
    """Append events to the streams of their jobs in one round trip.

    A token brings ``running_ttl`` seconds of life with it, and the terminal entry sets the retention, in the same
    transaction: a worker that dies between two commands leaves no stream that stays for ever. Nothing follows an end.
    Raises StreamError for a stream that holds something else, and what redis-py raises.
    """
    with connection.pipeline(transaction=True) as pipeline:
        for job_id, event in entries:
            key, fields = keys.token_stream(job_id), event.to_fields()
            if isinstance(event, EndEvent):
                words = [part for pair in fields.items() for part in pair]
                pipeline.eval(END_SCRIPT, 1, key, entry_id(event.number), str(keys.RETENTION), "", *words)
                continue
            pipeline.xadd(key, fields, id=entry_id(event.number))  # type: ignore[arg-type]
            # With each token: a stream that was lost in the middle begins again with a later one than the first.
            pipeline.expire(key, running_ttl)
        answers = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and REFUSED_REPEAT not in str(answer):
            raise answer


def read_stream(connection: redis.Redis, job_id: str) -> list[Event]:
    """Everything that a job's stream holds now. Raises StreamError where a number is missing."""
    raw: Any = connection.xrange(keys.token_stream(job_id))
    events = [decode_entry(entry) for entry in raw]
    check_unbroken(events, after=0)
    return events


def published_tokens(connection: redis.Redis, job_id: str) -> tuple[list[TokenEvent], EndEvent | None]:
    """The tokens in a job's stream, and its terminal entry if it has one."""
    events = read_stream(connection, job_id)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    end = events[-1] if events and isinstance(events[-1], EndEvent) else None
    return tokens, end


def stream_length(connection: redis.Redis, job_id: str) -> tuple[int, EndEvent | None]:
    """How many tokens a job's stream holds, and its terminal entry if it has one: what its last entry tells."""
    last: Any = connection.xrevrange(keys.token_stream(job_id), count=1)
    event = decode_entry(last[0]) if last else None
    if isinstance(event, EndEvent):
        return event.tokens, event
    return (event.number if event else 0), None


def end_of(connection: redis.Redis, job_id: str) -> EndEvent | None:
    """The terminal entry of a job's stream; None where it has none, also where what stands there is damaged."""
    event = last_event(connection.xrevrange(keys.token_stream(job_id), count=1))
    return event if isinstance(event, EndEvent) else None


def ends_of(connection: redis.Redis, job_ids: Iterable[str]) -> dict[str, EndEvent]:
    """The terminal entries of those streams that have one, in one round trip."""
    asked = list(job_ids)
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in asked:
            pipeline.xrevrange(keys.token_stream(job_id), count=1)
        answers = checked_answers(pipeline.execute(raise_on_error=False))
    found = ((job_id, last_event(last)) for job_id, last in zip(asked, answers, strict=True))
    return {job_id: event for job_id, event in found if isinstance(event, EndEvent)}


def last_event(last: Any) -> Event | None:
    """The event in XREVRANGE's answer about a stream's last entry; None for a damaged one, and where there is none."""
    try:
        return decode_entry(last[0]) if isinstance(last, list) and last else None
    except StreamError:
        return None


def check_unbroken(events: Sequence[Event], after: int) -> None:
    """Raise StreamError unless the events carry the numbers after ``after``, one by one, and none follows an end."""
    for expected, event in enumerate(events, start=after + 1):
        if event.number == expected + 1:
            raise StreamError(f"the stream has a gap: token {expected} is missing")
        if event.number != expected:
            raise StreamError(f"the stream has a gap: tokens {expected} to {event.number - 1} are missing")
        if isinstance(event, EndEvent) and event is not events[-1]:
            raise StreamError(f"the stream goes on after its end at {expected}")
