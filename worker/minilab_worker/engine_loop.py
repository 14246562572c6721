"""The loop that computes: takes jobs in, steps the engine, publishes.

It runs in a thread of its own, so that bookkeeping does not stand between two tokens. Other threads speak to it by
commands in one queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Final

import redis

from minilab_gen.constraint import Constraint
from minilab_gen.engine import Chosen, Engine, Outcome
from minilab_gen.errors import RedisUnavailableError, RequestError, StreamError
from minilab_worker.commands import Add, Cancel, Command, Drain, Recheck, Return
from minilab_worker.compiling import Compiled, Compiling
from minilab_worker.job_run import JobRun, JobState, JobTable
from minilab_worker.job_store import JobStore
from minilab_worker.outage import RedisOutage
from minilab_worker.publisher import StreamWriter
from minilab_worker.telemetry.counters import Counters

_log = logging.getLogger(__name__)

_COMPILING_LOOK: Final = 0.05
"""Seconds between two looks at the cancel flags of jobs whose forms are compiled, while nothing else is to be done."""


class EngineLoop:
    """Owns the engine and the streams that it writes."""

    def __init__(
        self,
        engine: Engine,
        streams: StreamWriter,
        store: JobStore,
        jobs: JobTable,
        counters: Counters,
        compiling: Compiling,
    ) -> None:
        """``engine`` tells the clock of ``counters`` its phases."""
        self._engine, self._streams, self._store, self._jobs = engine, streams, store, jobs
        self._counters, self._compiling = counters, compiling
        self.outage = RedisOutage("tokens")
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._arrived: list[JobRun] = []
        self._serving: dict[str, JobRun] = {}  # by job id, which is what the engine calls a sequence
        self._must_recheck = self._is_draining = self._is_returning = self._is_hurried = False
        self.failure: BaseException | None = None
        """What ended the loop, if it was not asked to end."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def tell(self, command: Command) -> None:
        """Put a command into the queue of the loop."""
        self._commands.put(command)

    def wait(self, timeout: float) -> None:
        """Wait for the loop's end, for so many seconds."""
        self._thread.join(timeout)

    @property
    def _has_work(self) -> bool:
        return bool(self._arrived or self._serving or self._engine.has_work)

    def _main(self) -> None:
        try:
            while self._obey_commands():
                self._step()
        except RedisUnavailableError as error:  # serve() raises it in the main thread, which says so
            self.failure = error
        except BaseException as error:  # noqa: BLE001 - as above
            self.failure = error
            _log.critical("the engine loop ended: %s: %s", type(error).__name__, error)
        finally:
            self._compiling.stop()
            self._streams.disconnect()

    def _obey_commands(self) -> bool:
        """Obey what is in the queue, and wait for a command when there is nothing to do; False at the end."""
        self._read_commands()
        while not (self._has_work or self._is_draining):
            self._engine.check_idle()
            self._must_recheck = False
            self._obey(self._commands.get())
            self._read_commands()
        if self._only_compiles:
            self._wait_for_form()
        if self._is_returning:
            self._return_jobs()
        arrived, self._arrived = self._arrived, []
        for run in arrived:
            self._admit(run)
        return self._has_work or not self._is_draining

    @property
    def _only_compiles(self) -> bool:
        if self._arrived or self._engine.has_work or not self._serving:
            return False
        return all(run.is_compiling for run in self._serving.values())

    def _wait_for_form(self) -> None:
        try:
            self._obey(self._commands.get(timeout=_COMPILING_LOOK))
        except queue.Empty:
            return

    def _read_commands(self) -> None:
        while not self._commands.empty():
            self._obey(self._commands.get())

    def _obey(self, command: Command) -> None:
        match command:
            case Add(run):
                self._arrived.append(run)
            case Cancel(job_id):
                self._cancel(job_id)
            case Recheck():
                self._must_recheck = True
            case Compiled(run, made):
                self._take_form(run, made)
            case Drain():
                self._is_draining = True
            case Return(hurry):
                self._is_draining = self._is_returning = True
                self._is_hurried = self._is_hurried or hurry

    def _cancel(self, job_id: str) -> None:
        self._engine.end(job_id, "cancelled")
        for run in (*self._arrived, *self._serving.values()):
            if run.job_id == job_id and run.state is JobState.CLAIMED:
                run.close("cancelled")

    def _admit(self, run: JobRun) -> None:
        """Take a job in; if the engine still knows it from before it was lost and claimed again, a step later."""
        earlier = self._serving.get(run.job_id)
        if earlier is not None:
            self._drop([earlier])
        if run.end is None and self._engine.end(run.job_id, "cancelled"):  # it ends at the next step
            self._arrived.insert(0, run)
            return
        self._serving[run.job_id] = run
        if run.end is None:
            self._compute(run)

    def _compute(self, run: JobRun) -> None:
        """Give a job's sequence to the engine, once its form is compiled; one that it does not take fails alone."""
        assert run.sequence is not None, "a job without a sequence has ended"
        if run.is_compiling:
            self._compiling.start(run, self.tell)
            return
        try:
            self._engine.add(run.sequence)
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends this job alone
            self._fail(run, error)
        else:
            run.enter(JobState.RUNNING)

    def _take_form(self, run: JobRun, made: Constraint | Exception) -> None:
        if not self._serves(run) or run.end is not None:  # it was dropped or cancelled meanwhile
            return
        if isinstance(made, Exception):
            self._fail(run, made)
            return
        assert run.sequence is not None, "a job with a form has a sequence"
        run.sequence.constraint = made
        self._compute(run)

    def _fail(self, run: JobRun, error: Exception) -> None:
        """End one job for what went wrong with it; its neighbours go on."""
        if not isinstance(error, RequestError):  # which says all, and may quote the request
            _log.error("%s: the job failed", run.job_id, exc_info=error, extra={"job_id": run.job_id})
        run.fail(error)
        self._engine.end(run.job_id, "cancelled")  # an outcome that is not published

    def _step(self) -> None:
        """One step of the engine, while Redis takes in what the step before it chose."""
        clock, computes = self._counters.clock, self._engine.has_work
        clock.begin()
        outcomes = self._engine.step() if computes else []
        advanced = self._take(outcomes)
        clock.end_phase("text")
        try:
            self._confirm()
            clock.end_phase("confirm")
            self._streams.send(self._serving.values(), self._running())
        except redis.RedisError as error:
            self._bridge_outage(error)
        self._counters.count_tokens(advanced)
        clock.end_phase("publish")
        if computes:
            clock.end()

    def _take(self, outcomes: list[Outcome]) -> list[JobRun]:
        """Give each job its event; returns those that got a token."""
        advanced = []
        for outcome in outcomes:
            run = self._serving.get(outcome.sequence.name)
            if run is not None and run.sequence is outcome.sequence and run.end is None:  # else it was dropped
                try:
                    run.take(outcome)
                except Exception as error:  # noqa: BLE001 - whatever it was, it ends this job alone
                    self._fail(run, error)
                    continue
                if isinstance(outcome, Chosen):
                    advanced.append(run)
                    if run.state is JobState.ENDED:  # by a stop text, of which the engine knows nothing
                        self._engine.end(run.job_id, "stop")
        return advanced

    def _confirm(self) -> None:
        """What came of the events sent last; nothing is sent after a refused one before it is understood."""
        for run in self._streams.collect():
            if self._serves(run):
                self._cancel(run.job_id)
        refused = [run for run in self._streams.take_refused() if self._serves(run)]
        if refused or self._must_recheck:
            self._must_recheck = False
            self._drop_what_is_not_owned()
            self._compare([run for run in refused if self._serves(run)])
        self._release_published()

    def _serves(self, run: JobRun) -> bool:
        return self._serving.get(run.job_id) is run

    def _compare(self, runs: Sequence[JobRun]) -> None:
        """Look at what streams really hold and go on from there.

        A stream that has a hole, since Redis came back without its beginning, or alien entries is written anew.
        """
        for run in runs:
            try:
                stream = self._streams.read_stream(run)
            except StreamError:
                self._streams.delete_stream(run)
                stream = []
            run.adopt_stream(stream)
            if run.end is not None:
                self._engine.end(run.job_id, "cancelled")  # an outcome that is not published

    def _drop_what_is_not_owned(self) -> None:
        """Stop work on jobs that another worker continues: this one stood still for longer than its lease."""
        runs = list(self._serving.values())
        owned = self._store.owned([run.job for run in runs])
        self._drop([run for run in runs if run.job.execution_id not in owned])

    def _drop(self, runs: list[JobRun]) -> None:
        for run in runs:
            extra = {"job_id": run.job_id}
            _log.warning("%s: another worker has taken the job over, it is dropped here", run.job_id, extra=extra)
            self._forget(run)
        self._jobs.move(runs, JobState.LOST)

    def _return_jobs(self) -> None:
        """Publish what is chosen, and return every job that has not ended."""
        try:
            self._confirm()
        except redis.RedisError as error:
            self._bridge_outage(error)
        runs = self._running() + [run for run in self._arrived if run.end is None]
        self._arrived = [run for run in self._arrived if run.end is not None]
        for run in runs:
            self._forget(run)
        self._jobs.move(runs, JobState.RETURNED)

    def _forget(self, run: JobRun) -> None:
        self._engine.end(run.job_id, "cancelled")  # an outcome that is not published
        self._serving.pop(run.job_id, None)

    def _running(self) -> list[JobRun]:
        """Those that have not ended, be it that their forms are still compiled."""
        return [run for run in self._serving.values() if run.state in (JobState.RUNNING, JobState.CLAIMED)]

    def _release_published(self) -> None:
        published = [run for run in self._serving.values() if run.state is JobState.ENDED and run.is_confirmed]
        for run in published:
            del self._serving[run.job_id]
        self._jobs.move(published, JobState.PUBLISHED)

    def _bridge_outage(self, error: redis.RedisError) -> None:
        """Hold the tokens until Redis is back, then complete every stream. Raises when that takes too long."""
        while True:
            self._read_commands()
            time.sleep(self.outage.pause_after(error, hurry=self._is_hurried))
            try:
                self._complete_streams()
            except redis.RedisError as again:
                error = again
            else:
                self.outage.is_over()
                return

    def _complete_streams(self) -> None:
        self._streams.recover([])
        self._drop_what_is_not_owned()
        runs = list(self._serving.values())
        self._compare(self._streams.recover(runs))
        self._streams.send(runs, ())
        self._streams.collect()
