"""The life of one job in this worker, as explicit states, and the table of all jobs that the worker holds.

A job holds a slot from its claim until its end is recorded, or until another worker or its queue has it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from minilab_gen.engine import Chosen, Ended
from minilab_gen.engine import Sequence as EngineSequence
from minilab_gen.errors import RequestError
from minilab_gen.logprobs import PromptLogprobs
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, EndReason, Event
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.text.tokenizer import Tokenizer
from minilab_worker.job_store import Claim, Completion, StartedJob


class JobState(Enum):
    """Where a job stands in the worker that claimed it."""

    CLAIMED = "started in the store, on its way to the engine"
    RUNNING = "the engine computes it, or keeps it waiting for memory"
    ENDED = "its terminal entry is chosen"
    PUBLISHED = "its terminal entry is confirmed in the stream"
    RECORDED = "the store knows how it ended"
    LOST = "another worker continues it"
    RETURNED = "it goes back to its queue"

    @property
    def holds_slot(self) -> bool:
        return bool(TRANSITIONS[self])


TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.CLAIMED: frozenset({JobState.RUNNING, JobState.ENDED, JobState.LOST, JobState.RETURNED}),
    JobState.RUNNING: frozenset({JobState.ENDED, JobState.LOST, JobState.RETURNED}),
    JobState.ENDED: frozenset({JobState.PUBLISHED, JobState.LOST, JobState.RETURNED}),
    JobState.PUBLISHED: frozenset({JobState.RECORDED, JobState.ENDED}),
    JobState.RECORDED: frozenset(),
    JobState.LOST: frozenset(),
    JobState.RETURNED: frozenset(),
}
"""The states that may follow each state; a state that none follows holds no slot. A published job has only
ended again where Redis has lost its terminal entry."""


class JobRun:
    """One claimed job: its state, its transcript, and how much of that is published.

    The transcript is kept whole, so that the stream can be completed after a lost connection.
    """

    def __init__(self, claim: Claim, tokenizer: Tokenizer) -> None:
        self.job, self.job_id = claim.job, claim.job.job_id
        self.state = JobState.CLAIMED
        self.transcript = Transcript(claim.request, tokenizer if claim.request else None, claim.stream)
        self.sent = self.confirmed = len(claim.stream)
        """Events that are on their way to the stream, and that are known to be in it."""
        self.resumed_at = self.transcript.tokens
        """Tokens that other workers chose before."""
        self.began = time.monotonic()
        self.submitted = _on_our_clock(claim.submitted_at)
        """On the same clock; None where it was not noted."""
        self.is_sent_again = False
        """Whether its end was published before and Redis has lost it."""
        self.last_token: float | None = None
        """When this worker chose one for it last."""
        self.stream_key, self.cancel_key = keys.token_stream(self.job_id), keys.cancel_flag(self.job_id)
        self.running_ttl = claim.timeout + keys.RETENTION
        """Seconds that the stream lives if no worker ends it."""
        self._has_stop_texts = bool(claim.request and claim.request.stop)
        self.sequence: EngineSequence | None = None
        """None where there is nothing to compute."""
        if self.end is not None:
            self.enter(JobState.ENDED)
        elif claim.request is not None:
            deadline = self.began + claim.timeout
            self.sequence = EngineSequence(self.job_id, claim.request, self.transcript.ids, deadline=deadline)

    @property
    def end(self) -> EndEvent | None:
        """The terminal event, once there is one."""
        return self.transcript.end

    @property
    def is_refused(self) -> bool:
        """Whether the job holds no request that can run."""
        return not self.transcript.prompt_tokens

    @property
    def is_compiling(self) -> bool:
        """Whether the form of its answer is still to be compiled."""
        sequence = self.sequence
        return (
            self.state is JobState.CLAIMED
            and sequence is not None
            and sequence.request.form is not None
            and sequence.constraint is None
        )

    @property
    def is_confirmed(self) -> bool:
        """Whether all events so far are known to be in the stream."""
        return self.confirmed == len(self.transcript.events)

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """What is to be written beside the stream of a job with an answer; None where that is nothing."""
        is_whole = self.end is not None and self.end.succeeded and self.sequence is not None
        return self.sequence.prompt_logprobs if is_whole and self.sequence is not None else None

    def enter(self, state: JobState) -> None:
        """Change the state, by the table."""
        assert state in TRANSITIONS[self.state], f"{self.job_id}: {state.name} must not follow {self.state.name}"
        self.state = state

    def take(self, outcome: Chosen | Ended) -> None:
        """Add the event that an outcome of the engine makes; with the token that completes a stop text the job ends."""
        if isinstance(outcome, Chosen):
            self.transcript.add(outcome.token_id, outcome.logprobs)
            if self._has_stop_texts and self.transcript.has_stopped():
                self.close("stop")
            return
        self.close(
            outcome.reason,
            stop_id=outcome.stop_id,
            error=outcome.error,
            phase="running" if outcome.reason == "timeout" else None,
            complete=outcome.is_complete,
        )

    def close(self, reason: EndReason, **details: Any) -> None:
        """Choose the terminal entry."""
        self.transcript.close(reason, **details)
        self.enter(JobState.ENDED)

    def fail(self, error: Exception) -> None:
        """Choose the terminal entry for something that went wrong with this job alone."""
        self.transcript.drop_decoder()  # which may be what failed
        if isinstance(error, RequestError):
            self.close("error", error=str(error), refused=True)
        else:
            self.close("error", error=f"{type(error).__name__}: {error}")

    def adopt_stream(self, stream: list[Event]) -> None:
        """Go on from what the stream holds, to which another worker may have written."""
        self.transcript.adopt(stream)
        self.sent = self.confirmed = min(len(stream), len(self.transcript.events))
        if self.end is not None and self.state is not JobState.ENDED:
            self.enter(JobState.ENDED)

    def send_again(self) -> None:
        """Send every event once more: Redis has lost some of those that it had confirmed."""
        self.sent = self.confirmed = 0
        self.is_sent_again = True

    def completion(self) -> Completion:
        """What the store is to record."""
        end = self.end
        assert end is not None, "only a job that has ended is recorded"
        if end.succeeded:
            return Completion(self.job, result=self.transcript.result())
        if end.reason == "cancelled":
            return Completion(self.job)
        return Completion(self.job, failure=end.error or f"the job ran out of time while {end.phase}")


class JobObserver(Protocol):
    """Is told what becomes of jobs, in the thread in which it happens."""

    def on_moved(self, runs: Sequence[JobRun], state: JobState) -> None:
        """These jobs have just entered this state: PUBLISHED, ENDED once more, RECORDED, LOST or RETURNED."""
        ...


class JobTable:
    """The jobs that a worker holds. Slots in use are a count over their states."""

    def __init__(self, slots: int, observer: JobObserver) -> None:
        self.slots = slots
        self._observer = observer
        self._runs: dict[str, JobRun] = {}  # by execution id: a job may be lost and claimed again
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """Slots in use."""
        with self._changed:
            return sum(run.state.holds_slot for run in self._runs.values())

    @property
    def free(self) -> int:
        return self.slots - self.used

    @property
    def started(self) -> list[StartedJob]:
        """The jobs whose lease and heartbeats this worker renews."""
        with self._changed:
            return [run.job for run in self._runs.values()]

    @property
    def ended(self) -> list[JobRun]:
        """The jobs whose end is still to be published."""
        with self._changed:
            return [run for run in self._runs.values() if run.state is JobState.ENDED]

    def holds(self, execution_id: str) -> bool:
        with self._changed:
            return execution_id in self._runs

    def add(self, run: JobRun) -> None:
        """Allocate a slot to a claimed job."""
        with self._changed:
            self._runs[run.job.execution_id] = run

    def move(self, runs: Sequence[JobRun], state: JobState) -> None:
        """Let jobs enter a state together, tell the observer, and release the slots of those that hold none in it."""
        if not runs:
            return
        with self._changed:
            for run in runs:
                run.enter(state)
        self._observer.on_moved(runs, state)
        with self._changed:
            self._forget(run for run in runs if not run.state.holds_slot)

    def wait(self, timeout: float) -> None:
        """Wait until a slot is released, for so many seconds at most."""
        with self._changed:
            self._changed.wait(timeout)

    def _forget(self, runs: Iterable[JobRun]) -> None:
        for run in runs:
            self._runs.pop(run.job.execution_id, None)
        self._changed.notify_all()


def _on_our_clock(unix_time: float | None) -> float | None:
    """A Unix time on the monotonic clock; that of the client, which noted it, may differ."""
    return None if unix_time is None else time.monotonic() - max(0.0, time.time() - unix_time)
