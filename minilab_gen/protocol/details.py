"""What is worth showing of a few jobs beyond their state: how the prompt begins, when they ran. It must change nothing.

A prompt may have 131 072 ids, so only the first bytes of each are inflated, and read as what they are: JSON.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import redis
from rq.job import Job

from minilab_gen.protocol.connection import checked_answers

FIRST_IDS: Final = 48
"""Ids of a prompt that are read: more than a line shows."""

_FIRST_BYTES: Final = 2048
"""Bytes of a job's arguments in which its first ids stand, whichever fields come before them."""

_AT_ONCE: Final = 100
"""Jobs read in one round trip."""

_FIELDS: Final = ("data", "description", "created_at", "started_at", "ended_at")

_PROMPT: Final = re.compile(rb'"prompt": ?\[([0-9, ]*)')
_COUNT: Final = re.compile(rb"([0-9]{1,7}) prompt tokens?,")


@dataclass(frozen=True, slots=True)
class JobDetails:
    """What is known of a job; None for what is not."""

    first_ids: tuple[int, ...] = ()
    """The first ids of its prompt."""
    prompt_tokens: int | None = None
    created: datetime | None = None
    started: datetime | None = None
    """When it was started last."""
    ended: datetime | None = None

    def tokens_per_second(self, tokens: int, now: datetime) -> float | None:
        """Its speed since it was started last, with so many tokens by its end or by now."""
        seconds = 0.0 if self.started is None else ((self.ended or now) - self.started).total_seconds()
        return tokens / seconds if tokens and seconds > 0 else None


def details(connection: redis.Redis, job_ids: Sequence[str]) -> Iterator[JobDetails]:
    """The details of each job; none are known of one that has expired."""
    for first in range(0, len(job_ids), _AT_ONCE):
        with connection.pipeline(transaction=False) as pipeline:
            for job_id in job_ids[first : first + _AT_ONCE]:
                for field in _FIELDS:
                    pipeline.hget(Job.key_for(job_id), field)
            answers = checked_answers(pipeline.execute(raise_on_error=False))
        width = len(_FIELDS)
        yield from (_details(*answers[at : at + width]) for at in range(0, len(answers), width))


def _details(data: Any, description: Any, created: Any, started: Any, ended: Any) -> JobDetails:
    counted = _COUNT.match(description) if isinstance(description, bytes) else None
    begun, over = _moment(started), _moment(ended)
    if begun is not None and over is not None and over < begun:  # it was ended before, and started again since
        over = None
    return JobDetails(_first_ids(data), int(counted[1]) if counted else None, _moment(created), begun, over)


def _first_ids(data: Any) -> tuple[int, ...]:
    if not isinstance(data, bytes):
        return ()
    try:
        begins = zlib.decompressobj().decompress(data, _FIRST_BYTES)
    except zlib.error:  # RQ takes it as it is
        begins = data[:_FIRST_BYTES]
    found = _PROMPT.search(begins)
    if found is None:
        return ()
    ids = [part.strip() for part in found[1].split(b",")]
    if found.end() == len(begins):
        ids.pop()  # it may go on in what was not inflated
    return tuple(int(part) for part in ids[:FIRST_IDS] if part)


def _moment(field: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(field.decode("ascii") if isinstance(field, bytes) else "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
