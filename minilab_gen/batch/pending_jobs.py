"""The jobs of a batch: found again or put into the queue, so many at a time, and collected at their end.

A job's id comes from its line, so that a job which an earlier run has submitted is found and
not run twice. Where a call fails in the middle because Redis is lost, it may be made again.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

import redis

from minilab_gen.batch.line import Line
from minilab_gen.errors import DuplicateJobError, MiniLabError, QueueFullError, RequestError, UnknownJobError
from minilab_gen.protocol.events import EndEvent, EndReason
from minilab_gen.protocol.jobs import fetch, request_of, states_of
from minilab_gen.protocol.results import Answer, answers, fingerprint_of, result
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

MOST_LOSSES: Final = 3
"""Times that a line's job may vanish from Redis before that is its end: a restart without its data is one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a line has no answer."""

    code: EndReason | Literal["lost"]
    reason: str


@dataclass(frozen=True, slots=True)
class EndedLine:
    """How the job of a line ended."""

    line: Line
    job_id: str
    outcome: Answer | Failure


_Again = Literal["vanished", "spent"]
"""There is no outcome, and a job has to be submitted anew: with the same id, or that id is used up."""

_Outcome = Answer | Failure | _Again


@dataclass(slots=True, eq=False)
class _PendingJob:
    """A line without an outcome yet, and its job."""

    line: Line
    request: GenerationRequest
    attempt: int = 0
    was_found: bool = False
    """Whether an earlier run, or another program, has submitted the job."""
    was_refused: bool = False
    """Whether Redis has just refused the job's id."""
    losses: int = 0

    @property
    def job_id(self) -> str:
        return self.line.job_id(self.attempt)


class Admission(Protocol):
    """Who says when a job may come into the queue."""

    def admit(self, job_id: str, request: GenerationRequest) -> bool:
        """Whether it may now. It may be asked again about a job that it has let in."""

    def give_back(self, job_id: str, request: GenerationRequest) -> None:
        """The queue has refused what was let in."""


class PendingJobs:
    """The lines that were taken from the file and have no outcome yet."""

    def __init__(
        self,
        connection: redis.Redis,
        submission: Submission,
        fingerprint: str,
        at_once: int,
        *,
        retries: bool = True,
        admission: Admission | None = None,
    ) -> None:
        """``submission`` is for all jobs; answers that models of another ``fingerprint`` once gave do not count.

        ``retries`` tells whether a job that an earlier run has seen fail is submitted again.
        """
        self._retries, self._admission = retries, admission
        self._connection, self._submission, self._fingerprint = connection, submission, fingerprint
        self.at_once = at_once
        self._waiting: deque[_PendingJob] = deque()
        self._submitted: dict[str, _PendingJob] = {}
        self.is_held_back = False
        """Whether the queue has just been too full to take more, or the admission was refused."""

    @property
    def free(self) -> int:
        """How many more lines it takes; the answers of the last one may be more than that."""
        return max(0, self.at_once - len(self._waiting) - len(self._submitted))

    @property
    def submitted(self) -> int:
        """Jobs that have not ended, as far as is known."""
        return len(self._submitted)

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._submitted

    def add(self, line: Line) -> None:
        self._waiting.append(_PendingJob(line, line.request))

    @property
    def job_ids(self) -> list[str]:
        """The jobs that have not ended, as far as is known."""
        return list(self._submitted)

    def drop_waiting(self) -> list[Line]:
        """Forget the lines of which no job is there, and give them back: nothing more is to be submitted."""
        self._find_earlier()
        dropped = [pending.line for pending in self._waiting]
        self._waiting.clear()
        return dropped

    def submit(self) -> None:
        """Find the jobs of waiting lines, or submit them as far as the queue takes them."""
        self._find_earlier()
        self.is_held_back = False
        for _ in range(min(len(self._waiting), self.at_once - len(self._submitted))):
            pending = self._waiting[0]
            if self._admission is not None and not self._admission.admit(pending.job_id, pending.request):
                self.is_held_back = True
                return
            try:
                enqueue(self._connection, pending.request, replace(self._submission, job_id=pending.job_id))
            except DuplicateJobError:  # another client was quicker, or our own first try has arrived: look again
                pending.was_refused = True
                self._waiting.rotate(-1)
                continue
            except QueueFullError:
                if self._admission is not None:
                    self._admission.give_back(pending.job_id, pending.request)
                self.is_held_back = True
                return
            self._submitted[pending.job_id] = self._waiting.popleft()

    def collect(self) -> list[EndedLine]:
        """The lines whose jobs have ended since the last call."""
        submitted = list(self._submitted)
        states = dict(zip(submitted, states_of(self._connection, submitted), strict=True))
        finished = [job_id for job_id, state in states.items() if state == "finished"]
        outcomes: dict[str, _Outcome | None] = {
            job_id: answer or self._outcome_of(job_id)
            for job_id, answer in zip(finished, answers(self._connection, finished), strict=True)
        }
        for job_id, state in states.items():
            if state is None:
                outcomes[job_id] = "vanished"
            elif state in ("failed", "cancelled"):
                outcomes[job_id] = self._outcome_of(job_id)
        # Up to here nothing was changed, so that a connection which is lost on the way takes no outcome with it.
        return [ended for job_id, outcome in outcomes.items() if (ended := self._settle(job_id, outcome))]

    def _find_earlier(self) -> None:
        """Go on with jobs that are there already. One that failed is passed over: the next attempt is another job."""
        unknown = list(self._waiting)
        while unknown:
            states = states_of(self._connection, [pending.job_id for pending in unknown])
            looked_up = list(zip(unknown, states, strict=True))
            unknown = []
            for pending, state in looked_up:
                has_failed = self._retries and state in ("failed", "cancelled")
                if has_failed or (state is None and pending.was_refused):
                    pending.request = self._request_after(pending)
                    pending.attempt += 1
                    unknown.append(pending)
                elif state is not None:
                    pending.was_found = True
                    self._submitted[pending.job_id] = pending
                pending.was_refused = False
            self._waiting = deque(pending for pending in self._waiting if not pending.was_found)

    def _request_after(self, pending: _PendingJob) -> GenerationRequest:
        """What the attempt after one that failed asks: the same, with the date that a chat's template wrote then."""
        if pending.line.rendered_digest is None:
            return pending.request
        try:
            return request_of(fetch(self._connection, pending.job_id))
        except (UnknownJobError, RequestError):
            return pending.request

    def _outcome_of(self, job_id: str) -> _Outcome | None:
        """How a job ended, by its stream; None where a worker is still at it, whatever RQ says."""
        try:
            found = result(self._connection, job_id)
            fingerprint = fingerprint_of(self._connection, job_id)
        except UnknownJobError:
            return "spent"
        except (MiniLabError, ValueError) as error:  # a damaged record or stream
            return Failure("error", str(error))
        if found is None:
            return None
        if found.end.succeeded:
            listed = (found.logprobs, found.prompt_logprobs)
            return Answer(found.ids, found.text, found.end, time.time(), fingerprint, *listed)
        return Failure(found.end.reason, _reason(found.end))

    def _settle(self, job_id: str, outcome: _Outcome | None) -> EndedLine | None:
        """The ended line of a job; None where it runs on, or its line has to be submitted anew."""
        if outcome is None:
            return None
        pending = self._submitted[job_id]
        if isinstance(outcome, str):
            pending.losses += 1
            if pending.losses > MOST_LOSSES:
                outcome = Failure(
                    "lost", f"Redis lost the job {pending.losses} times; is its maxmemory-policy noeviction?"
                )
        elif isinstance(outcome, Answer) and self._is_by_another_model(pending, outcome):
            outcome = "spent"
        del self._submitted[job_id]
        if not isinstance(outcome, str):
            return EndedLine(pending.line, job_id, outcome)
        pending.attempt += outcome == "spent"
        pending.was_found = False
        self._waiting.append(pending)
        return None

    def _is_by_another_model(self, pending: _PendingJob, answer: Answer) -> bool:
        """Whether an earlier run's answer comes from a model that had this name before."""
        known = self._fingerprint and answer.fingerprint
        return bool(pending.was_found and known and answer.fingerprint != self._fingerprint)


def _reason(end: EndEvent) -> str:
    after = f"after {end.tokens} token{'' if end.tokens == 1 else 's'}"
    if end.reason == "cancelled":
        return f"the job was cancelled {after}"
    if end.reason == "timeout":
        return f"the job ran out of time {after}; give a longer --timeout"
    return f"the job failed {after}: {end.error or 'no reason was recorded'}"
