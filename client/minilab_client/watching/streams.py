"""What a look reads of jobs: the text of those that run, as it grows, and how others ended.

A running job's stream is read on from where the last look stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Any, Final

from rq.job import Job
from rq.utils import str_to_date

from minilab_client.watching.snapshot import EndedJob, RunningJob
from minilab_client.watching.survey import Ending, text_of
from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, RawEntry, decode_entry, entry_id

NEWEST_TOKENS: Final = 256
"""Tokens of a job that one look reads at most: more than a line of the widest screen shows."""

_KEPT_CHARACTERS: Final = 512
"""Characters of a job's text that are kept, for the same reason."""


class _Text:
    """How far a job's stream has been read, and the end of its text."""

    def __init__(self) -> None:
        self.tokens = 0
        self.text = ""

    def take(self, newest_first: Sequence[RawEntry]) -> None:
        """Add what was read. Where there was more than one look reads, the text begins anew behind the gap."""
        events = [event for entry in reversed(newest_first) if (event := _decoded(entry))]
        if not events:
            return
        if events[0].number > self.tokens + 1:
            self.text = ""
        self.text = (self.text + "".join(event.text for event in events))[-_KEPT_CHARACTERS:]
        last = events[-1]
        self.tokens = last.tokens if isinstance(last, EndEvent) else last.number


class RunningJobs:
    """Follows jobs while they are shown."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    @property
    def followed(self) -> list[str]:
        """The ids of the jobs that were shown last."""
        return list(self._texts)

    def ask(self, pipeline: Any, job_ids: Sequence[str]) -> None:
        """Ask for what these jobs' streams have gained; all others are forgotten."""
        self._texts = {job_id: self._texts.get(job_id) or _Text() for job_id in job_ids}
        for job_id, text in self._texts.items():
            pipeline.hget(Job.key_for(job_id), "worker_name")
            pipeline.xrevrange(keys.token_stream(job_id), min=entry_id(text.tokens + 1), count=NEWEST_TOKENS)

    def read(self, answers: Iterator[Any], is_up: Callable[[str], bool]) -> tuple[RunningJob, ...]:
        """Take the answers; ``is_up`` tells whether a worker is alive."""
        jobs = []
        for job_id, text in self._texts.items():
            worker = next(answers)
            text.take(next(answers) or ())
            gone = bool(worker) and not is_up(text_of(worker))
            jobs.append(RunningJob(job_id, text.tokens, text.text, gone))
        return tuple(jobs)


class EndedJobs:
    """Reads each job's end once."""

    def __init__(self) -> None:
        self._known: dict[str, EndedJob] = {}
        self._endings: Sequence[Ending] = ()

    def ask(self, pipeline: Any, endings: Sequence[Ending]) -> None:
        """Ask how these jobs ended, where it is not known yet; all others are forgotten."""
        self._endings = endings
        self._known = {end.job_id: self._known[end.job_id] for end in endings if end.job_id in self._known}
        for ending in endings:
            if ending.job_id not in self._known:
                pipeline.hget(Job.key_for(ending.job_id), "ended_at")
                pipeline.xrevrange(keys.token_stream(ending.job_id), count=1)

    def read(self, answers: Iterator[Any]) -> tuple[EndedJob, ...]:
        """Take the answers: the jobs, newest first."""
        jobs = [self._known.get(ending.job_id) or self._read(ending, answers) for ending in self._endings]
        return tuple(sorted(jobs, key=lambda job: -job.ended_at))

    def _read(self, ending: Ending, answers: Iterator[Any]) -> EndedJob:
        when = _unix_time(next(answers)) or ending.ended_at
        last = next(answers)
        event = _decoded(last[0]) if last else None
        if not isinstance(event, EndEvent):  # its stream has expired, or its end is not written yet
            tokens = event.number if event else 0
            return EndedJob(ending.job_id, when, ending.state, ending.state == "finished", tokens)
        error = event.error or (f"while {event.phase}" if event.phase else "")
        job = EndedJob(ending.job_id, when, event.reason, event.succeeded, event.tokens, error)
        self._known[ending.job_id] = job
        return job


def _decoded(entry: RawEntry) -> Event | None:
    """The event in an entry; None for one that is none: that is for `tail` to complain about."""
    try:
        return decode_entry(entry)
    except StreamError:
        return None


def _unix_time(stamp: bytes | None) -> float | None:
    """RQ's time stamp; None where there is none, or another."""
    try:
        return str_to_date(stamp or b"").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
