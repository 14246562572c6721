"""One batch that this gateway drives: its lines in, jobs into the queue, answers out; a step at a time.

All that must outlive this process is in Redis: which lines are done, and the jobs, whose ids follow from the batch and
the number of the line. So another gateway that begins anew with the first line that is not done finds what this one had
submitted.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import redis

from minilab_gateway.batches import outcomes
from minilab_gateway.batches.batch import ENDED, Batch, error_file_id, output_file_id
from minilab_gateway.batches.batch_store import BatchStore, Written
from minilab_gateway.batches.envelope import Envelope, Validation, open_line
from minilab_gateway.batches.file_store import FileStore
from minilab_gateway.batches.outcomes import Ending
from minilab_gateway.batches.share import share_of
from minilab_gateway.completion_routes import refusal_of
from minilab_gateway.limits import Limits
from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.choices import Choices, choices_of
from minilab_gen.batch.json_lines import RawLine, read_lines
from minilab_gen.batch.line import Line, checked_line
from minilab_gen.batch.openai_form import form_of, read_checked
from minilab_gen.batch.pending_jobs import EndedLine, Failure, PendingJobs
from minilab_gen.errors import RequestError, UnknownJobError, UnknownModelError
from minilab_gen.protocol.endings import cancel
from minilab_gen.protocol.submission import Submission
from minilab_gen.request import GenerationRequest

_LINES_AT_ONCE: Final = 100
"""Lines that are read in one step, of which a text may take a millisecond."""

_WRITTEN_AT_ONCE: Final = 20
"""Lines in one round trip, each of which may be some MB."""

_SLACK_SECONDS: Final = 60
"""That a job may wait beyond the window: before, the driver ends it."""


@dataclass(frozen=True, slots=True)
class Means:
    """What all runs of a process share."""

    connection: redis.Redis
    batches: BatchStore
    files: FileStore
    model: Callable[[object], AskedModel]
    """A model by its name; raises UnknownModelError."""
    driver: str
    """The name of this process on leases."""
    at_once: int
    """Jobs of one batch that may be under way."""
    timeout: int
    max_queued: int | None
    limits: Limits
    """Of the keys."""


class BatchRun:
    """A batch whose lease this process holds."""

    def __init__(self, means: Means, batch: Batch) -> None:
        self._means, self.batch = means, batch
        self.is_over = False
        self._at_once = means.at_once if batch.asked.jobs is None else min(means.at_once, batch.asked.jobs)
        self._validation: Validation | None = None
        self._lines: Iterator[RawLine] | None = None
        self._taken = 0  # the number of the last line that was read
        self._is_read = self._took_any = False
        self._done: set[int] | None = None
        self._pending: PendingJobs | None = None
        self._model: AskedModel | None = None
        self._choices = Choices()
        self._unwritten: list[Written] = []
        self._cancelled: set[str] = set()

    def step(self) -> bool:
        """Do what can be done now; whether that was anything. Raises LeaseLostError and what redis-py raises.

        It may be called again after that: nothing is lost on the way.
        """
        (found,) = self._means.batches.read([self.batch.batch_id])
        if found is None or found.status in ENDED:
            self._means.batches.close(self.batch.batch_id)
            self.is_over = True
            return True
        self.batch = found
        if found.status == "validating":
            return self._validate()
        if not found.total:  # cancelled before it was looked at: which lines it has is not known
            return self._end("cancelled")
        if found.completed + found.failed >= found.total:
            return self._finish()
        ending = self._ending()
        self._write()
        progressed = self._answer(ending)
        self._write()
        if self._is_read and (self._pending is None or self._pending.is_empty):
            self._begin_anew()
        return progressed

    def _begin_anew(self) -> None:
        """Look for lines that are not done: there are none, but where Redis has lost some, or the whole input."""
        (found,) = self._means.batches.read([self.batch.batch_id])
        if found is None or found.completed + found.failed >= found.total:
            return
        if not self._took_any:
            lost = {"code": "input_file_lost", "line": None, "message": "the input file is gone", "param": None}
            self._end("failed", errors=orjson.dumps([lost]).decode())
        self._done, self._lines, self._taken, self._is_read, self._took_any = None, None, 0, False, False

    def _ending(self) -> Ending | None:
        if self.batch.status == "cancelling":
            return "batch_cancelled"
        if self._means.batches.now() < self.batch.expires_at:
            return None
        if not self.batch.is_expiring:
            self._move({"is_expiring": "1"})  # before any line is given up: else all have an answer
        return "batch_expired"

    # validating

    def _validate(self) -> bool:
        means, batch = self._means, self.batch
        if self._validation is None:
            opened = means.files.opened(batch.asked.input_file_id)
            self._validation = Validation(batch, read_lines(opened), self._check_model)
        looked_at, self._validation = self._validation, None  # an outage in its middle has it begin anew
        if not looked_at.step():
            self._validation = looked_at
            return True
        now = int(means.batches.now())
        if looked_at.errors:
            errors = orjson.dumps(looked_at.errors).decode()
            return self._move({"status": "failed", "failed_at": now, "errors": errors})
        began = {"status": "in_progress", "in_progress_at": now, "total": looked_at.total}
        return self._move({**began, "model": looked_at.model})

    def _check_model(self, name: str) -> None:
        self._means.model(name)

    def _move(self, fields: dict[str, Any]) -> bool:
        return self._means.batches.move(self.batch, self._means.driver, fields)

    # answering

    def _answer(self, ending: Ending | None) -> bool:
        """Take lines, submit and collect; whether anything came of it."""
        pending = self._pending = self._pending or self._make_pending(ending)
        if pending is None:  # no worker has announced its model yet
            return False
        pending.at_once = self._at_once if ending is None else _LINES_AT_ONCE
        took = self._take_lines(pending, ending)
        if ending is None:
            pending.submit()
        else:
            self._stop(pending, ending)
        ended_lines = pending.collect()
        for ended in ended_lines:
            self._note(ended, ending)
        return bool(took or ended_lines)

    def _make_pending(self, ending: Ending | None) -> PendingJobs | None:
        means, batch = self._means, self.batch
        assert batch.model is not None  # as it has been looked at
        try:
            self._model = means.model(batch.model)
        except UnknownModelError:
            if ending is None:
                return None
        left = max(1, int(batch.expires_at - means.batches.now()))
        submission = Submission(
            batch.model,
            priority="low",
            timeout=means.timeout,
            ttl=left + _SLACK_SECONDS,
            max_queued=means.max_queued,
        )
        share = share_of(batch.asked, means.limits)
        return PendingJobs(means.connection, submission, "", self._at_once, retries=False, admission=share)

    def _take_lines(self, pending: PendingJobs, ending: Ending | None) -> int:
        """Read on as long as more jobs may be submitted; how many lines were taken."""
        for count in range(_LINES_AT_ONCE):
            if self._is_read or not pending.free:
                return count
            raw = next(self._opened(), None)
            if raw is None:
                self._is_read = True
                return count
            self._take(raw, pending)
            self._taken, self._took_any = raw.number, True
        return _LINES_AT_ONCE

    def _opened(self) -> Iterator[RawLine]:
        """The lines that are neither taken nor done; from the file's start again after a read has failed."""
        if self._done is None:
            self._done = self._means.batches.done(self.batch.batch_id)
        if self._lines is None:
            self._lines = self._left(self._done, self._taken)
        return self._lines

    def _left(self, done: set[int], after: int) -> Iterator[RawLine]:
        try:
            for raw in read_lines(self._means.files.opened(self.batch.asked.input_file_id)):
                if raw.number > after and raw.number not in done:
                    yield raw
        finally:
            self._lines = None

    def _take(self, raw: RawLine, pending: PendingJobs) -> None:
        opened = open_line(raw, self.batch.asked.endpoint)  # no line that validation has seen raises
        digest = _digest(self.batch.batch_id, raw.number)
        try:
            line = self._line(opened)
        except RequestError as error:
            told = refusal_of(error, opened.route, opened.body)
            self._unwritten.append(outcomes.refused(raw.number, opened.custom_id, digest, told))
            return
        for choice in choices_of(replace(line, digest=digest)):
            pending.add(choice)

    def _line(self, opened: Envelope) -> Line:
        """The line as what its jobs are to do. Its seed, where it names none, comes of its content."""
        form = form_of(opened.route)
        body = {name: value for name, value in opened.body.items() if name != "store"}
        if self._model is None:  # the batch ends, and nothing is submitted any more
            n = body.get("n")
            n = n if type(n) is int and 1 <= n <= 64 else 1
            return Line(opened.number, opened.custom_id, form, GenerationRequest((0,)), None, "", n=n)
        content = read_checked(opened.route, body, self._model)
        return checked_line(opened.number, opened.custom_id, form, content, self._model)

    def _note(self, ended: EndedLine, ending: Ending | None) -> None:
        together = self._choices.add(ended)
        if together is None:
            return
        if self._model is None:
            line = ended.line
            written = outcomes.left_over(line.number, line.custom_id, line.digest, ending or "batch_expired")
        else:
            written = outcomes.of_jobs(together, self._model, ending)
        self._unwritten.append(written)

    def _write(self) -> None:
        """Write what is to be written; what a lost connection keeps from that stays for the next time."""
        while self._unwritten:
            self._means.batches.record(self.batch, self._means.driver, self._unwritten[:_WRITTEN_AT_ONCE])
            del self._unwritten[:_WRITTEN_AT_ONCE]

    # ending

    def _stop(self, pending: PendingJobs, ending: Ending) -> None:
        """Submit nothing more, and have the jobs end that are there."""
        for line in pending.drop_waiting():
            self._note(EndedLine(line, line.job_id(0), Failure("cancelled", ending)), ending)
        for job_id in pending.job_ids:
            if job_id not in self._cancelled:
                with contextlib.suppress(UnknownJobError, RequestError):  # it is found to be lost as it is collected
                    cancel(self._means.connection, job_id)
                self._cancelled.add(job_id)

    def _finish(self) -> bool:
        """Give the batch its last status: all of its lines are done."""
        status = self.batch.status
        if status == "in_progress" and not self.batch.is_expiring:
            return self._move({"status": "finalizing", "finalizing_at": int(self._means.batches.now())})
        return self._end({"cancelling": "cancelled", "finalizing": "completed"}.get(status, "expired"))

    def _end(self, status: str, **more: str) -> bool:
        """Make files of what was written, and say how the batch ended."""
        means, batch = self._means, self.batch
        now = int(means.batches.now())
        fields: dict[str, Any] = {"status": status, f"{status}_at": now}
        fields |= {"completed": batch.completed, "failed": batch.failed, **more}
        for name, file_id, lines, size in (
            ("output", output_file_id(batch.batch_id), batch.completed, batch.output_bytes),
            ("error", error_file_id(batch.batch_id), batch.failed, batch.error_bytes),
        ):
            if lines:
                filename = f"{batch.batch_id}_{name}.jsonl"
                means.files.keep(file_id, batch.asked.owner, filename, "batch_output", size, batch.asked.output_seconds)
                fields[f"{name}_file_id"] = file_id
        return self._move(fields)


def _digest(batch_id: str, number: int) -> str:
    """What the ids of a line's jobs are made of."""
    return hashlib.sha256(f"{batch_id}\0{number}".encode()).hexdigest()[:32]
