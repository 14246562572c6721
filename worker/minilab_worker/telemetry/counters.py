"""What a worker has counted and timed since it started, for whatever reads or exports it.

Every number has one thread that writes it, named beside it; others read it as it stands, without a lock. So to count
costs a token a fraction of a microsecond, whether or not it is scraped.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, get_args

from minilab_gen.engine import Phase
from minilab_gen.protocol.events import END_REASONS, EndReason
from minilab_worker.job_run import JobRun

_STEP_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds: a step of a small model takes a few milliseconds; the longest are outages."""

_WAIT_BOUNDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Seconds: an idle worker answers in some milliseconds; ten thousand prompts wait for hours."""

LOOP_PHASES: Final = ("text", "confirm", "publish")
"""What the engine's thread does in a step beside the engine: text of the tokens, Redis's answers, sending to Redis."""

PHASES: Final[tuple[str, ...]] = get_args(Phase) + LOOP_PHASES
"""Of a step, in their order."""


class Histogram:
    """How many values were at most as large as each bound, and the sum of all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Those above the bound before and not above this one; in the last one those above all."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class StepClock:
    """How long the phases of all steps took together, and how long each step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = Histogram(_STEP_BOUNDS)
        self._clock = clock
        self._began = self._since = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = self._since = self._clock()

    def end_phase(self, phase: str) -> None:
        """What was done since the last call belongs to this phase."""
        now = self._clock()
        self.seconds[phase] += now - self._since
        self._since = now

    def end(self) -> None:
        """The step ends with its last phase."""
        self.steps.add(self._since - self._began)


class Counters:
    """What one worker has counted."""

    def __init__(self) -> None:
        # The main thread's.
        self.started = self.resumed = self.taken_over = 0
        """Jobs claimed; those of them that had tokens already; jobs requeued for workers whose lease had expired."""
        self.queue_wait = Histogram(_WAIT_BOUNDS)
        # The engine thread's.
        self.prompt_tokens = self.tokens = 0
        """Of prompts that were read to their end; chosen."""
        self.first_token = Histogram(_WAIT_BOUNDS)
        self.gap = Histogram(_STEP_BOUNDS)
        self.clock = StepClock()
        self.ended: dict[EndReason, int] = dict.fromkeys(END_REASONS, 0)
        self.lost = self.returned = 0
        """Jobs that other workers took over; jobs that went back to their queue as this worker drained."""
        # The recorder thread's.
        self.recorded = 0
        """Jobs whose end the store knows."""

    def count_start(self, run: JobRun) -> None:
        """A job was claimed. How long it waited is counted for those of which no token was published."""
        self.started += 1
        if run.resumed_at:
            self.resumed += 1
        elif run.submitted is not None:
            self.queue_wait.add(run.began - run.submitted)

    def count_tokens(self, runs: list[JobRun]) -> None:
        """A token of each run is on its way to its readers."""
        now = time.monotonic()
        for run in runs:
            if run.last_token is None:
                self._count_first(run, now)
        self.tokens += len(runs)
        # Nearly all had their last one in the same step: 64 gaps are counted in the time of two.
        for earlier, times in Counter([run.last_token for run in runs]).items():
            if earlier is not None:
                self.gap.add(now - earlier, times)
        for run in runs:
            run.last_token = now

    def count_ends(self, runs: Iterable[JobRun]) -> None:
        """The ends of these are published."""
        for run in runs:
            assert run.end is not None, "only a run that has ended is counted as such"
            self.ended[run.end.reason] += 1

    def _count_first(self, run: JobRun, now: float) -> None:
        self.prompt_tokens += run.transcript.prompt_tokens
        if not run.resumed_at and run.submitted is not None:
            self.first_token.add(now - run.submitted)
