"""The worker: claims jobs while slots are free, hands them to the engine, has their ends recorded.

Three threads: this one claims and renews the lease; the engine's computes and publishes; the recorder's writes ends
into the store. What a job is doing is its state (``job_run.py``).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.engine import Engine
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.server_info import eviction_warning, server_info
from minilab_worker import outage
from minilab_worker.admission import admit
from minilab_worker.commands import Add, Cancel, Drain, Recheck, Return
from minilab_worker.compiling import Compiling
from minilab_worker.engine_loop import EngineLoop
from minilab_worker.job_run import JobRun, JobState, JobTable
from minilab_worker.job_store import Claim, JobStore, StartedJob
from minilab_worker.outage import RedisOutage
from minilab_worker.publisher import Publisher, StreamWriter
from minilab_worker.recorder import Recorder
from minilab_worker.rq import RqJobStore
from minilab_worker.serving import ServedModel
from minilab_worker.takeover import Takeover
from minilab_worker.telemetry.counters import Counters
from minilab_worker.telemetry.journal import Journal
from minilab_worker.telemetry.reporter import Reporter

_log = logging.getLogger(__name__)

IDLE_WAIT: Final = 0.05
"""Seconds of one wait for a job: a job of high or low priority is seen that late by an idle worker."""

_SLOT_WAIT: Final = 0.1
"""Seconds of one wait for a free slot: how late a full worker sees that it is to stop."""

_CLAIM_PAUSE: Final = 0.003
"""Seconds between two claims while jobs run: those that are submitted meanwhile are claimed together."""

_SHORT_PAUSE: Final = 0.05
"""Seconds between two looks at what still runs while the worker drains."""

_CARD_INTERVAL: Final = 3600.0
"""Seconds between two announcements of the model, whose card lives a day, and between two looks for what has expired
in RQ's registries."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The store, streams and connection of a worker."""

    connection: redis.Redis
    """For the model's card and for reports."""
    store: JobStore
    streams: StreamWriter


MakeEngine = Callable[[ServedModel, int, Counters], Engine]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings."""

    queues: tuple[str, ...]
    max_batch: int
    redis_url: str | None = None
    burst: bool = False
    """Exit when the queues are empty."""
    lease: int = 15
    """Seconds after its last heartbeat at which a worker's lease expires."""
    grace: float = 25.0
    """Seconds that running jobs get to end when the worker drains; then they are requeued."""
    log_text: bool = False
    """Write the answers of ended jobs into the log."""


def make_engine(served: ServedModel, max_batch: int, counters: Counters) -> Engine:
    """The engine of a served model, whose phases are timed."""
    return Engine(
        served.model,
        max_batch,
        threads=served.threads,
        kv_tokens=served.kv_tokens,
        on_phase=counters.clock.end_phase,
    )


def redis_ports(settings: WorkerSettings, served: ServedModel) -> Ports:
    """The ports of a worker that serves from Redis: a connection each, since each has a thread of its own."""
    connection = connect(settings.redis_url, wait=outage.REDIS_LIMIT)
    connection.set_retry(Retry(NoBackoff(), 0))  # the loop of the main thread tries again
    own = connect(settings.redis_url)
    store = RqJobStore(own, settings.queues, settings.lease, served.card.fingerprint)
    return Ports(connection, store, Publisher(connect(settings.redis_url)))


class Worker:
    """Serves one model from its queues until it is asked to stop."""

    def __init__(
        self,
        settings: WorkerSettings,
        served: ServedModel,
        make_engine: MakeEngine = make_engine,
        ports: Ports | None = None,
    ) -> None:
        self._settings, self._served = settings, served
        ports = ports or redis_ports(settings, served)
        self._connection, self._store = ports.connection, ports.store
        self.counters = Counters()
        self._jobs = JobTable(settings.max_batch, self)
        self._engine = make_engine(served, settings.max_batch, self.counters)
        compiling = Compiling(FormCompiler(served.tokenizer, served.card.vocab_size))
        self._loop = EngineLoop(self._engine, ports.streams, self._store, self._jobs, self.counters, compiling)
        self._takeover = Takeover(self._store, self._jobs, settings.lease, self.counters)
        self._recorder = Recorder(self._store, self._jobs)
        self._reporter = Reporter(self._connection, self.name, served.card, settings.max_batch)
        self._must_stop = self._must_hurry = False  # no Events: a signal may come while one is being waited for
        self._returned: list[StartedJob] = []
        self._journal = Journal(shows_text=settings.log_text)
        self._outage = RedisOutage("claims and heartbeats")
        self._next_renewal = self._next_card = self._next_claim = 0.0

    @property
    def name(self) -> str:
        return self._store.worker

    @property
    def is_serving(self) -> bool:
        """Whether the engine's thread is at work."""
        return self._loop.is_alive

    @property
    def used(self) -> int:
        """Slots in use."""
        return self._jobs.used

    @property
    def outages(self) -> tuple[RedisOutage, ...]:
        """Of all threads that wait while Redis is unavailable."""
        return self._outage, self._loop.outage, self._recorder.outage

    @property
    def done(self) -> int:
        """Jobs whose end is recorded."""
        return self.counters.recorded

    def serve(self) -> None:
        """Run jobs until asked to stop or, in burst mode, until none is left. Raises what ended a thread."""
        self._insist(lambda: self._store.open(self.cancel))
        self._insist(self._warn_of_the_server)
        self._loop.start()
        self._recorder.start()
        _log.info("%s serves %s, %d slots", self.name, ", ".join(self._settings.queues), self._settings.max_batch)
        try:
            while not self._is_over():
                self._through_outages(self._look_after_jobs)
            self._drain()
        finally:
            self._recorder.close()
            self._store.close()
            self._connection.close()
        for failure in (self._loop.failure, self._recorder.failure):
            if failure is not None:
                raise failure

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end :meth:`serve`; the main thread's to call."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def stop(self) -> None:
        """Claim no more jobs; those that run are finished within the grace time. Called again: at once."""
        self._must_hurry = self._must_stop
        self._must_stop = True

    def cancel(self, job_id: str) -> None:
        """Cancel a job at the engine's next step; the id of a job that does not run here is ignored."""
        self._loop.tell(Cancel(job_id))

    def recheck_ownership(self) -> None:
        """Ask at the engine's next step which jobs are still this worker's."""
        self._loop.tell(Recheck())

    def check_idle(self) -> None:
        """Assert that a worker without jobs holds nothing."""
        assert not self._jobs.started, "an idle worker must hold no job"
        self._engine.check_idle()

    def on_moved(self, runs: Sequence[JobRun], state: JobState) -> None:
        """What follows when jobs enter a state, in the thread in which they do."""
        if state is JobState.PUBLISHED:
            first = [run for run in runs if not run.is_sent_again]
            self.counters.count_ends(first)
            self._journal.ended(first)
            self._recorder.add(runs)
        elif state is JobState.ENDED:
            for run in runs:
                run.send_again()
                self._loop.tell(Add(run))
        elif state is JobState.RECORDED:
            self.counters.recorded += len(runs)
        elif state is JobState.LOST:
            self.counters.lost += len(runs)
            with contextlib.suppress(redis.RedisError):  # then to stand still counts as an expired lease
                self._store.survived([run.job for run in runs])
        elif state is JobState.RETURNED:
            self.counters.returned += len(runs)
            self._journal.returned(runs)
            self._returned += [run.job for run in runs]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _warn_of_the_server(self) -> None:
        if warning := eviction_warning(server_info(self._connection)):
            _log.warning("%s", warning)

    def _is_over(self) -> bool:
        return self._must_stop or not self._loop.is_alive or not self._recorder.is_alive

    def _look_after_jobs(self) -> None:
        self._renew_if_due()
        self._takeover.sweep_if_due()
        self._claim_what_fits()

    def _through_outages(self, work: Callable[[], None]) -> bool:
        """Do something with Redis; while Redis is unavailable, return False after a pause, but not for ever."""
        was_away = self._outage.is_on
        try:
            work()
        except redis.RedisError as error:
            pause = self._outage.pause_after(error, hurry=self._must_hurry)
            time.sleep(min(pause, self._settings.lease / 6))
            return False
        self._outage.is_over()
        if was_away:
            self._takeover.wait_a_lease()
        return True

    def _insist(self, work: Callable[[], None]) -> None:
        """Do something with Redis, again and again until it is done."""
        while not self._through_outages(work):
            pass

    def _renew_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_renewal:
            self._renew()
            self._next_renewal = now + self._settings.lease / 3
        if now >= self._next_card:
            publish_card(self._connection, self._served.card, self._served.tokenizer.to_json())
            self._store.trim()
            self._next_card = now + _CARD_INTERVAL
        self._reporter.report_if_due(self._jobs.used, self.counters.tokens)

    def _renew(self) -> None:
        renewal = self._store.renew(self._jobs.started)
        if not renewal.is_complete:
            self.recheck_ownership()
        for job_id in renewal.cancelled:
            self.cancel(job_id)

    def _claim_what_fits(self) -> None:
        """Claim jobs for the free slots; with none free, or no job, wait a little."""
        if self._jobs.used:
            time.sleep(max(0.0, self._next_claim - time.monotonic()))
        free = self._jobs.free
        if not free:
            self._jobs.wait(_SLOT_WAIT)
            return
        claims = self._store.claim(free, IDLE_WAIT)
        self._next_claim = time.monotonic() + _CLAIM_PAUSE
        for claim in claims:
            self._begin(claim)
        if not claims and self._settings.burst and not self._jobs.used:
            self.stop()

    def _begin(self, claim: Claim) -> None:
        """Give a claimed job to the engine, which also publishes the end of one that does not run."""
        run = admit(claim, self._served.card.limits, self._served.tokenizer)
        self._jobs.add(run)
        self.counters.count_start(run)
        self._journal.started(run)
        self._loop.tell(Add(run))

    def _drain(self) -> None:
        """Let running jobs end within the grace time and requeue the rest, all the while renewing the lease."""
        _log.info("%s drains: no new jobs, %d run", self.name, self._jobs.used)
        grace = float("inf") if self._settings.burst else self._settings.grace
        give_up = time.monotonic() + grace
        self._loop.tell(Drain())
        while self._loop.is_alive:
            self._through_outages(self._renew_if_due)
            if self._must_hurry or time.monotonic() >= give_up:
                self._loop.tell(Return(hurry=self._must_hurry))
            self._loop.wait(_SHORT_PAUSE)
        while self._loop.failure is None and self._recorder.is_alive and self._jobs.used:
            self._jobs.move(self._jobs.ended, JobState.RETURNED)  # no thread publishes any more
            self._through_outages(self._renew_if_due)
            self._jobs.wait(_SHORT_PAUSE)
        if self._returned:
            self._insist(lambda: self._takeover.requeue(self._returned))
        _log.info("%s exits: %d jobs ended, %d requeued", self.name, self.done, self.counters.returned)
