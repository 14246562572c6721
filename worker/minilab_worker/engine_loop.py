"""The loop that computes: takes runs in, steps the engine, publishes. It must not know about RQ.

It runs in a thread of its own, so that RQ's bookkeeping does not stand between two tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

import redis
import torch

from minilab_gen.engine import Chosen, Engine, Outcome
from minilab_gen.errors import RedisUnavailableError, RequestError
from minilab_worker.patience import Patience
from minilab_worker.publisher import Publisher
from minilab_worker.run import Run
from minilab_worker.tally import Tally

_log = logging.getLogger(__name__)


class LoopObserver(Protocol):
    """Who is told what becomes of runs. Called in the loop's thread."""

    def on_ended(self, runs: list[Run]) -> None:
        """Their ends are published."""
        ...

    def on_lost(self, runs: list[Run]) -> None:
        """They are other workers' now."""
        ...

    def on_given_back(self, runs: list[Run]) -> None:
        """They have not ended and are to be continued elsewhere."""
        ...

    def still_ours(self, runs: list[Run]) -> list[Run]:
        """Those that no other worker has taken over. Raises redis.RedisError."""
        ...


class EngineLoop:
    """Owns the engine and the publisher."""

    def __init__(
        self, engine: Engine, publisher: Publisher, observer: LoopObserver, tally: Tally, threads: int | None
    ) -> None:
        """``engine`` tells the clock of ``tally`` its phases."""
        self._engine, self._publisher, self._observer = engine, publisher, observer
        self._tally, self._threads = tally, threads
        self.patience = Patience("tokens")
        self._wake = threading.Condition()
        self._arrived: list[Run] = []
        self._stopped: list[str] = []
        self._closing = self._giving_back = self._hurrying = self._in_doubt = False
        self._runs: dict[str, Run] = {}
        self._flagged: list[Run] = []
        self.failure: BaseException | None = None
        """What ended the loop, if it was not asked to end."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def add(self, run: Run) -> None:
        """Let a run in at the next step; one that has ended already is only published."""
        with self._wake:
            self._arrived.append(run)
            self._wake.notify()

    def stop_job(self, job_id: str) -> None:
        """Cancel a job at the next step; an unknown id is no matter."""
        with self._wake:
            self._stopped.append(job_id)
            self._wake.notify()

    def doubt(self) -> None:
        """Ask at the next step which runs are still ours."""
        with self._wake:
            self._in_doubt = True
            self._wake.notify()

    def close(self) -> None:
        """End the loop when every run has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def give_back(self, *, hurry: bool = False) -> None:
        """End it now: publish what is chosen, give the rest back. In a hurry an absent Redis is not waited for."""
        with self._wake:
            self._giving_back = True
            self._hurrying = self._hurrying or hurry
            self._wake.notify()

    def wait(self, timeout: float) -> None:
        """Wait for the loop's end, for so many seconds."""
        self._thread.join(timeout)

    @property
    def _has_work(self) -> bool:
        return bool(self._arrived or self._stopped or self._runs or self._engine.has_work)

    def _main(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            while self._take_in():
                self._step()
        except RedisUnavailableError as error:  # serve() raises it in the main thread, which says so
            self.failure = error
        except BaseException as error:  # noqa: BLE001 - as above
            self.failure = error
            _log.critical("the engine loop ended: %s: %s", type(error).__name__, error)
        finally:
            self._publisher.disconnect()

    def _take_in(self) -> bool:
        """Let arrivals into the engine, waiting for one when there is nothing to do; False at the end."""
        with self._wake:
            while not (self._has_work or self._closing):
                self._engine.check_books()
                self._in_doubt = False
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
            stopped, self._stopped = self._stopped, []
        for run in arrived:
            self._admit(run)
        for job_id in stopped:
            self._engine.end(job_id, "cancelled")
        if self._giving_back:
            self._give_back()
        return self._has_work or not self._closing

    def _admit(self, run: Run) -> None:
        """Take a run in; if the engine still knows its job from before it was lost and claimed again, a step later."""
        earlier = self._runs.get(run.job_id)
        if earlier is not None:
            self._drop([earlier])
        if run.end is None and run.sequence is not None:
            if self._engine.end(run.job_id, "cancelled"):  # it leaves at the next step
                self._arrived.insert(0, run)
                return
            try:
                self._engine.add(run.sequence)
            except Exception as error:  # noqa: BLE001 - whatever it was, it ends this job alone
                self._fail(run, error)
        self._runs[run.job_id] = run

    def _fail(self, run: Run, error: Exception) -> None:
        """End one job for what went wrong with it; its neighbours go on."""
        if not isinstance(error, RequestError):  # which says all, and may quote the request
            _log.error("%s: the job failed", run.job_id, exc_info=error, extra={"job_id": run.job_id})
        run.fail(error)
        self._engine.end(run.job_id, "cancelled")  # an outcome that nobody publishes

    def _step(self) -> None:
        """One step of the engine, while Redis takes in what the step before it chose."""
        clock, computes = self._tally.clock, self._engine.has_work
        clock.begin()
        outcomes = self._engine.step() if computes else []
        advanced = self._take(outcomes)
        clock.end_phase("text")
        try:
            self._take_answers()
            clock.end_phase("confirm")
            self._publisher.send(self._runs.values(), self._running(), self._flagged)
        except redis.RedisError as error:
            self._reach_redis_again(error)
        self._tally.count_tokens(advanced)
        clock.end_phase("publish")
        if computes:
            clock.end()
        for run in self._flagged:
            if self._runs.get(run.job_id) is run:
                self._engine.end(run.job_id, "cancelled")
        self._flagged.clear()

    def _take(self, outcomes: list[Outcome]) -> list[Run]:
        """Give each run its event; returns those that got a token."""
        advanced = []
        for outcome in outcomes:
            run = self._runs.get(outcome.sequence.name)
            if run is not None and run.sequence is outcome.sequence and run.end is None:  # else it was dropped
                try:
                    run.take(outcome)
                except Exception as error:  # noqa: BLE001 - whatever it was, it ends this job alone
                    self._fail(run, error)
                    continue
                if isinstance(outcome, Chosen):
                    advanced.append(run)
        return advanced

    def _take_answers(self) -> None:
        """What came of the events sent last; nothing is sent after a refused one before it is understood."""
        self._publisher.collect()
        refused = [run for run in self._publisher.take_refused() if self._runs.get(run.job_id) is run]
        if refused or self._in_doubt:
            self._in_doubt = False
            self._drop_what_is_not_ours()
            for run in refused:
                self._compare(run)
        self._let_ended_go()

    def _compare(self, run: Run) -> None:
        """Find out why Redis refused a run's entry."""
        if self._runs.get(run.job_id) is run:
            self._publisher.compare(run)
            if run.end is not None:
                self._engine.end(run.job_id, "cancelled")  # an outcome that nobody publishes

    def _drop_what_is_not_ours(self) -> None:
        """Stop work on jobs that another worker goes on with: this one stood still for longer than its lease."""
        runs = list(self._runs.values())
        kept = {run.job_id for run in self._observer.still_ours(runs)}
        self._drop([run for run in runs if run.job_id not in kept])

    def _drop(self, runs: list[Run]) -> None:
        for run in runs:
            extra = {"job_id": run.job_id}
            _log.warning("%s: another worker has taken the job over, it is dropped here", run.job_id, extra=extra)
            self._engine.end(run.job_id, "cancelled")  # an outcome that nobody publishes
            del self._runs[run.job_id]
        if runs:
            self._tally.lost += len(runs)
            self._observer.on_lost(runs)

    def _give_back(self) -> None:
        """Publish what is chosen, and let everything go that has not ended."""
        try:
            self._take_answers()
        except redis.RedisError as error:
            self._reach_redis_again(error)
        unfinished = self._running()
        with self._wake:
            unfinished += self._arrived
            self._arrived = []
        for run in unfinished:
            self._engine.end(run.job_id, "cancelled")  # an outcome that nobody publishes
            self._runs.pop(run.job_id, None)
        if unfinished:
            self._tally.given_back += len(unfinished)
            self._observer.on_given_back(unfinished)

    def _running(self) -> list[Run]:
        return [run for run in self._runs.values() if run.end is None]

    def _let_ended_go(self) -> None:
        ended = [run for run in self._runs.values() if run.is_published]
        if ended:
            for run in ended:
                del self._runs[run.job_id]
            self._tally.count_ends(ended)
            self._observer.on_ended(ended)

    def _reach_redis_again(self, error: redis.RedisError) -> None:
        """Hold the tokens until Redis is back, then make every stream whole. Raises when it stays away too long."""
        while True:
            time.sleep(self.patience.failed(error, hurry=self._hurrying))
            try:
                self._drop_what_is_not_ours()
                self._publisher.recover(self._runs.values())
            except redis.RedisError as again:
                error = again
            else:
                self.patience.succeeded()
                return
