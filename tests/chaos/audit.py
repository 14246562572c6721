"""The one check over all jobs at the end of a chaos run, from what stands in Redis and what readers read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, cast

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from chaos.checkpoint import Answers
from chaos.load import PlannedJob
from chaos.readers import Reader
from minilab_gen.errors import StreamError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, RawEntry, TokenEvent, decode_entry
from minilab_gen.protocol.streams import check_unbroken
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

_SUCCESS: Final = ("stop", "length", "context")
_STATUS: Final = {"cancelled": "canceled", "timeout": "failed", "error": "failed"}
_GIVEN_UP: Final = "workers lost their lease while they ran this job"
_MOST_LOST: Final = 3


@dataclass(slots=True)
class Findings:
    """What is wrong, in words, by kind; all lists are empty after a good run."""

    lost: list[str] = field(default_factory=list)
    """Jobs without an end, or with tokens missing."""
    doubled: list[str] = field(default_factory=list)
    """Jobs with more than one end, or recorded more than once."""
    different: list[str] = field(default_factory=list)
    """Jobs whose tokens, end or readers disagree with what ``generate`` says."""
    left: list[str] = field(default_factory=list)
    """What stands in RQ's keys or in ours and should not."""

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.different, *self.left]


class Audit:
    """Looks at one job after the other, then at RQ's records."""

    def __init__(self, connection: redis.Redis, answers: Answers) -> None:
        self._connection, self._answers = connection, answers
        self._statuses: dict[str, set[str]] = {"finished": set(), "failed": set(), "canceled": set()}
        self.findings = Findings()
        self.given_up = 0
        """Jobs that were failed because the leases of three workers expired over them, as is the rule."""

    def check_jobs(self, planned: list[PlannedJob]) -> None:
        """Every acknowledged job ended once, with the right tokens, and RQ says the same."""
        for job in planned:
            events = self._stream_of(job.job_id)
            if events is not None:
                self._check_end(job, events)
                self._check_record(job.job_id, events[-1])

    def check_readers(self, readers: list[Reader]) -> None:
        """What was read is what stands there."""
        for reader in readers:
            if reader.failure is not None:
                self.findings.different.append(f"{reader.job_id}: a reader met {reader.failure}")
            elif reader.events != self._stream_of(reader.job_id, complain=False):
                self.findings.different.append(f"{reader.job_id}: a reader read {len(reader.events)} other events")

    def check_books(self) -> None:
        """RQ's registries hold the ended jobs and nothing else; no key of ours stays for ever."""
        for queue in self._queues():
            for key in (queue.key, queue.intermediate_queue_key, queue.started_job_registry.key):
                if self._connection.exists(key):
                    self.findings.left.append(f"{key} is not empty")
            registries = ("finished", queue.finished_job_registry), ("failed", queue.failed_job_registry)
            for status, registry in (*registries, ("canceled", queue.canceled_job_registry)):
                self._check_registry(status, {_text(job_id) for job_id in self._connection.zrange(registry.key, 0, -1)})
        for status, missing in self._statuses.items():
            self.findings.left += [f"{job_id} is {status} and in no registry of such" for job_id in sorted(missing)]
        for key in map(_text, self._connection.keys("rq:execution*")):
            self.findings.left.append(f"{key} was left over")
        for pattern in ("minilab:*", "rq:job:*", "rq:results:*", "rq:worker:*"):
            for key in map(_text, self._connection.keys(pattern)):
                if self._connection.ttl(key) < 0:
                    self.findings.left.append(f"{key} stays for ever")

    def check_counts(self) -> None:
        """The workers together count no success twice; the counts of those that left long ago have expired."""
        counted = sum(int(self._connection.hget(key, "successful_job_count") or 0) for key in self._worker_keys())
        finished = sum(self._connection.zcard(queue.finished_job_registry.key) for queue in self._queues())
        if counted > finished:
            self.findings.doubled.append(f"workers count {counted} successes for {finished} finished jobs")

    def _queues(self) -> list[Queue]:
        names = keys.queue_names(keys.DEFAULT_MODEL)
        return [Queue(name, connection=self._connection, serializer=JSONSerializer) for name in names]

    def _worker_keys(self) -> list[str]:
        found = [_text(key) for key in self._connection.keys("rq:worker:*")]
        return [key for key in found if not key.endswith(":executions")]

    def _stream_of(self, job_id: str, *, complain: bool = True) -> list[Event] | None:
        """The job's events, or None if they are not a whole stream."""
        try:
            entries = cast(list[RawEntry], self._connection.xrange(keys.token_stream(job_id)))
            events = [decode_entry(entry) for entry in entries]
            check_unbroken(events, after=0)
        except StreamError as error:
            kind = self.findings.doubled if "after its end" in str(error) else self.findings.lost
            if complain:
                kind.append(f"{job_id}: {error}")
            return None
        if not events or not isinstance(events[-1], EndEvent):
            if complain:
                self.findings.lost.append(f"{job_id}: its stream has {len(events)} tokens and no end")
            return None
        return events

    def _check_end(self, job: PlannedJob, events: list[Event]) -> None:
        end = events[-1]
        assert isinstance(end, EndEvent)
        tokens = events[:-1]
        expected = self._answers[job.request] if job.request else []
        right = tokens == (expected if end.reason in _SUCCESS else expected[: len(tokens)])
        allowed = {*_SUCCESS, "timeout"} if job.request else {"error"}
        if job.cancel_at is not None:
            allowed.add("cancelled")
        if end.reason == "error" and _GIVEN_UP in (end.error or "") and self._expired_leases(job.job_id) >= _MOST_LOST:
            self.given_up += 1
            allowed.add("error")
        if end.reason not in allowed:
            self.findings.different.append(f"{job.job_id}: ended with {end.to_json()}")
        elif not right:
            self.findings.different.append(
                f"{job.job_id}: {len(tokens)} tokens, texts or logprobs are not those of generate"
            )
        elif job.request and end.reason in _SUCCESS and end != _end_of(job.request, expected, end):
            self.findings.different.append(f"{job.job_id}: its end is not that of its tokens")

    def _expired_leases(self, job_id: str) -> int:
        return int(self._connection.get(keys.expired_leases(job_id)) or 0)

    def _check_record(self, job_id: str, end: Event) -> None:
        assert isinstance(end, EndEvent)
        status = _text(self._connection.hget(f"rq:job:{job_id}", "status") or b"missing")
        expected = _STATUS.get(end.reason, "finished")
        if status != expected:
            self.findings.lost.append(f"{job_id}: RQ says {status} after the end {end.reason}")
            return
        self._statuses[status].add(job_id)
        results = self._connection.xlen(f"rq:results:{job_id}")
        if results > 1 or (results == 0 and status == "finished"):
            self.findings.doubled.append(f"{job_id}: {results} results for one job that is {status}")

    def _check_registry(self, status: str, registered: set[str]) -> None:
        known = self._statuses[status]
        self.findings.left += [f"{job_id} is registered as {status} and is not" for job_id in registered - known]
        known -= registered


def _end_of(request: GenerationRequest, tokens: list[TokenEvent], end: EndEvent) -> EndEvent:
    """The end that one worker alone writes behind these tokens."""
    return Transcript(request, get_tokenizer(), tokens).close(end.reason, stop_id=end.stop_id, complete=end.complete)


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def is_gone(connection: redis.Redis, job_id: str) -> bool:
    """Whether Redis has no record of the job."""
    return not connection.exists(Job.key_for(job_id))


def unfinished(connection: redis.Redis, job_ids: Collection[str]) -> list[str]:
    """Those of the ids whose jobs RQ does not show as ended."""
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hget(Job.key_for(job_id), "status")
        statuses = pipeline.execute()
    ended = (b"finished", b"failed", b"canceled")
    return [job_id for job_id, status in zip(job_ids, statuses, strict=True) if status not in ended]
