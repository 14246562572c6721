"""The loop that computes: takes runs in, steps the engine, publishes. It must not know about RQ.

It runs in a thread of its own, so that RQ's bookkeeping does not stand between two tokens.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

import redis
import torch

from minilab_gen.engine import Engine
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.events import Event
from minilab_worker.publisher import Publisher
from minilab_worker.run import Run

_log = logging.getLogger(__name__)

REDIS_PATIENCE: Final = 60.0
"""Seconds that Redis may be away before the worker gives up; until then runs keep their tokens."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reach Redis again


class LoopObserver(Protocol):
    """Who is told what becomes of runs. Called in the loop's thread."""

    def on_ended(self, runs: list[Run]) -> None:
        """Their ends are published."""
        ...

    def on_dropped(self, runs: list[Run]) -> None:
        """They are other workers' now, or were given back."""
        ...

    def still_ours(self, runs: list[Run]) -> list[Run]:
        """Those that no other worker has taken over."""
        ...


class EngineLoop:
    """Owns the engine and the publisher."""

    def __init__(self, engine: Engine, publisher: Publisher, observer: LoopObserver, threads: int | None) -> None:
        self._engine, self._publisher, self._observer = engine, publisher, observer
        self._threads = threads
        self._wake = threading.Condition()
        self._arrived: list[Run] = []
        self._stopped: list[str] = []
        self._closing = False
        self._giving_back = False
        self._in_doubt = False
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
        """Let a run in at the next step."""
        with self._wake:
            self._arrived.append(run)
            self._wake.notify()

    def stop_job(self, job_id: str) -> None:
        """Cancel a job at the next step; an unknown id is no matter."""
        with self._wake:
            self._stopped.append(job_id)
            self._wake.notify()

    def doubt(self) -> None:
        """Ask before the next step which runs are still ours: the lease had run out."""
        with self._wake:
            self._in_doubt = True
            self._wake.notify()

    def close(self) -> None:
        """End the loop when every run has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def give_back(self) -> None:
        """End it now: publish what is chosen and drop the runs that have not ended."""
        with self._wake:
            self._giving_back = True
            self._wake.notify()

    def wait(self, timeout: float) -> None:
        """Wait for the loop's end, for so many seconds."""
        self._thread.join(timeout)

    def _main(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            while self._take_in():
                self._step()
        except BaseException as error:  # noqa: BLE001 - serve() raises it in the main thread
            self.failure = error
            _log.critical("the engine loop ended: %s: %s", type(error).__name__, error)
        finally:
            self._publisher.disconnect()

    def _take_in(self) -> bool:
        """Let arrivals into the engine, waiting for one when there is nothing to do; False at the end."""
        with self._wake:
            while not (self._arrived or self._stopped or self._runs or self._closing):
                self._engine.check_books()
                self._in_doubt = False
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
            stopped, self._stopped = self._stopped, []
            in_doubt, self._in_doubt = self._in_doubt, False
            giving_back = self._giving_back
        for run in arrived:
            self._runs[run.job_id] = run
            self._engine.add(run.sequence)
        for job_id in stopped:
            self._engine.end(job_id, "cancelled")
        if in_doubt:
            self._drop_what_is_not_ours(self._running())
        if giving_back:
            self._give_back()
        return bool(self._runs) or not self._closing

    def _step(self) -> None:
        """One step of the engine, while Redis takes in what the step before it chose."""
        outcomes = self._engine.step() if self._engine.has_work else []
        events: list[tuple[Run, Event]] = []
        for outcome in outcomes:
            run = self._runs.get(outcome.sequence.name)
            if run is not None and run.sequence is outcome.sequence:  # else it was dropped
                events.append((run, run.take(outcome)))
        try:
            self._publisher.collect()
            self._let_ended_go()
            self._publisher.send(events, self._running(), self._flagged)
        except redis.RedisError as error:
            self._reach_redis_again(error)
        for run in self._flagged:
            self._engine.end(run.job_id, "cancelled")
        self._flagged.clear()
        if self._publisher.refused:
            self._drop_what_is_not_ours(self._publisher.take_refused())

    def _drop_what_is_not_ours(self, runs: list[Run]) -> None:
        """Stop work on jobs that another worker goes on with: this one stood still for longer than its lease."""
        kept = {run.job_id for run in self._observer.still_ours(runs)}
        lost = [run for run in runs if run.job_id not in kept]
        self._drop(lost)
        for run in lost:
            _log.warning("%s: another worker has taken the job over, it is dropped here", run.job_id)

    def _give_back(self) -> None:
        """Publish what is chosen, and let everything go that has not ended."""
        self._publisher.collect()
        self._let_ended_go()
        self._drop(self._running())

    def _drop(self, runs: list[Run]) -> None:
        for run in runs:
            self._engine.end(run.job_id, "cancelled")  # an outcome that nobody publishes
            self._runs.pop(run.job_id, None)
        if runs:
            self._observer.on_dropped(runs)

    def _running(self) -> list[Run]:
        return [run for run in self._runs.values() if run.end is None]

    def _let_ended_go(self) -> None:
        ended = [run for run in self._runs.values() if run.end is not None and run.confirmed == run.end.number]
        if ended:
            for run in ended:
                del self._runs[run.job_id]
            self._observer.on_ended(ended)

    def _reach_redis_again(self, error: redis.RedisError) -> None:
        """Hold the tokens until Redis is back, then make every stream whole. Raises when it stays away too long."""
        _log.warning("Redis is away, tokens are kept: %s", error)
        give_up, pause = time.monotonic() + REDIS_PATIENCE, _FIRST_PAUSE
        while True:
            try:
                self._publisher.recover(self._runs.values())
            except redis.RedisError as again:
                if time.monotonic() > give_up:
                    raise RedisUnavailableError(f"Redis was away for {REDIS_PATIENCE:.0f} s: {again}") from again
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                _log.warning("Redis is back, every stream is whole again")
                self._drop_what_is_not_ours(self._running())
                return
