"""The worker: claims jobs while there are places, hands them to the engine, records how they ended.

Three threads: this one claims and keeps RQ's heartbeats; the engine's computes and publishes; the recorder's writes
ends into RQ's books. A place is free again only when its job's end is recorded.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

import redis

from minilab_gen.engine import Engine
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.server_info import eviction_warning, server_info
from minilab_worker import patience
from minilab_worker.admission import admit
from minilab_worker.claims import Claim
from minilab_worker.engine_loop import EngineLoop
from minilab_worker.journal import Journal
from minilab_worker.ledger import Ledger
from minilab_worker.patience import Patience
from minilab_worker.publisher import Publisher
from minilab_worker.recorder import Recorder
from minilab_worker.reporter import Reporter
from minilab_worker.run import Run
from minilab_worker.serving import ServedModel
from minilab_worker.takeover import Takeover
from minilab_worker.tally import Tally

_log = logging.getLogger(__name__)

IDLE_WAIT: Final = 0.05
"""Seconds of one wait for a job: a job of high or low priority is seen that late by an idle worker."""

_PLACE_WAIT: Final = 0.1
"""Seconds of one wait for a free place: how late a full worker sees that it is to stop."""

_SHORT_PAUSE: Final = 0.05
"""Seconds between two looks at what still runs while the worker leaves."""

_CARD_INTERVAL: Final = 3600.0
"""Seconds between two announcements of the model, whose card lives a day, and between two looks for what has expired
in RQ's registries."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told when it starts."""

    queues: tuple[str, ...]
    max_batch: int
    redis_url: str | None = None
    burst: bool = False
    """Leave when the queues are empty."""
    threads: int | None = None
    """How many compute; without a number, as many as the model was checked with."""
    lease: int = 15
    """Seconds after its last heartbeat at which a worker counts as dead."""
    grace: float = 25.0
    """Seconds that running jobs get to end when the worker is told to stop; then they go back to their queue."""
    log_text: bool = False
    """Write the answers of ended jobs into the log."""


class Worker:
    """Serves one model from its queues until it is told to stop."""

    def __init__(self, settings: WorkerSettings, served: ServedModel) -> None:
        self._settings, self._served = settings, served
        self._connection = connect(settings.redis_url, wait=patience.REDIS_PATIENCE)
        connection = connect(settings.redis_url)
        self._ledger = Ledger(connection, settings.queues, settings.lease, served.card.fingerprint)
        self.tally = Tally()
        self._loop = EngineLoop(
            Engine(served.model, settings.max_batch, kv_tokens=served.kv_tokens, on_phase=self.tally.clock.end_phase),
            Publisher(connect(settings.redis_url)),
            self,
            self.tally,
            settings.threads or served.threads,
        )
        self._takeover = Takeover(self._ledger, settings.lease, self.tally)
        self._ledger.on_stop = self._loop.stop_job
        self._recorder = Recorder(self._ledger, self._free_places)
        self._reporter = Reporter(self._ledger.connection, self.name, served.card, settings.max_batch)
        self._places = threading.Condition()
        self._taken = 0
        self._told_to_stop = self._told_to_hurry = False  # no Events: a signal may come while one is being waited for
        self._given_back: list[str] = []
        self._journal = Journal(shows_text=settings.log_text)
        self._patience = Patience("claims and heartbeats")
        self._next_beat = self._next_card = 0.0

    @property
    def name(self) -> str:
        return str(self._ledger.name)

    @property
    def used(self) -> int:
        """Places that are taken."""
        return self._taken

    @property
    def patiences(self) -> tuple[Patience, ...]:
        """Of all who wait while Redis is away."""
        return self._patience, self._loop.patience, self._recorder.patience

    @property
    def done(self) -> int:
        """Jobs whose end is recorded."""
        return self._recorder.done

    def serve(self) -> None:
        """Run jobs until told to stop or, in burst mode, until none is left. Raises what ended the engine's loop."""
        self._insist(self._ledger.open)
        self._insist(self._warn_of_the_server)
        self._loop.start()
        self._recorder.start()
        _log.info("%s serves %s, %d places", self.name, ", ".join(self._settings.queues), self._settings.max_batch)
        try:
            while not self._is_over():
                self._through_outages(self._look_after_jobs)
            self._finish_what_runs()
        finally:
            self._recorder.close()
            with contextlib.suppress(redis.RedisError):
                self._ledger.close()
            self._ledger.connection.close()
            self._connection.close()
        for failure in (self._loop.failure, self._recorder.failure):
            if failure is not None:
                raise failure

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end :meth:`serve`; the main thread's to call."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def stop(self) -> None:
        """Take no more jobs; those that run are finished within the grace time. Said again: at once."""
        self._told_to_hurry = self._told_to_stop
        self._told_to_stop = True

    def on_ended(self, runs: list[Run]) -> None:
        """Have the ends of runs recorded."""
        self._journal.ended(runs)
        self._recorder.add(runs)

    def on_lost(self, runs: list[Run]) -> None:
        """Free the places of runs that others go on with."""
        self._ledger.forget(run.execution for run in runs)
        with contextlib.suppress(redis.RedisError):  # then a sleep counts as a death
            self._ledger.has_survived(run.job_id for run in runs)
        self._free_places(len(runs))

    def on_given_back(self, runs: list[Run]) -> None:
        """Note what is to go back to its queue, and free the places."""
        self._journal.given_back(runs)
        self._given_back += [run.execution.id for run in runs]
        self._free_places(len(runs))

    def still_ours(self, runs: list[Run]) -> list[Run]:
        """Those that RQ's books still show as this worker's."""
        held = self._ledger.still_held(run.execution for run in runs)
        return [run for run in runs if run.execution.id in held]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def _warn_of_the_server(self) -> None:
        if warning := eviction_warning(server_info(self._connection)):
            _log.warning("%s", warning)

    def _is_over(self) -> bool:
        return self._told_to_stop or not self._loop.is_alive or not self._recorder.is_alive

    def _look_after_jobs(self) -> None:
        self._keep_alive()
        self._takeover.sweep_if_due()
        self._claim_what_fits()

    def _through_outages(self, work: Callable[[], None]) -> bool:
        """Do something with Redis; while Redis is away, return False after a pause, but not for ever."""
        was_away = self._patience.is_tried
        try:
            work()
        except redis.RedisError as error:
            pause = self._patience.failed(error, hurry=self._told_to_hurry)
            time.sleep(min(pause, self._settings.lease / 6))
            return False
        self._patience.succeeded()
        if was_away:
            self._takeover.wait_a_lease()
        return True

    def _insist(self, work: Callable[[], None]) -> None:
        """Do something with Redis, again and again until it is done."""
        while not self._through_outages(work):
            pass

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            if not self._ledger.beat():
                self._loop.doubt()
            self._next_beat = now + self._settings.lease / 3
        if now >= self._next_card:
            publish_card(self._connection, self._served.card, self._served.tokenizer.to_json())
            self._ledger.trim()
            self._next_card = now + _CARD_INTERVAL
        self._reporter.report_if_due(self._taken, self.tally.tokens)

    def _claim_what_fits(self) -> None:
        """Claim jobs for the places that are free; with none free, or no job, wait a little."""
        with self._places:
            free = self._settings.max_batch - self._taken
            if not free:
                self._places.wait(timeout=_PLACE_WAIT)
                return
        claims = self._ledger.claim(free, IDLE_WAIT)
        with self._places:
            self._taken += len(claims)
        for claim in claims:
            self._begin(claim)
        if not claims and self._settings.burst and not self._taken:
            self.stop()

    def _begin(self, claim: Claim) -> None:
        """Give a claimed job to the engine, which also publishes the end of one that does not run."""
        run = admit(claim, self._served.card.limits, self._served.tokenizer)
        self.tally.count_start(run)
        self._journal.started(run)
        self._loop.add(run)

    def _free_places(self, count: int) -> None:
        with self._places:
            self._taken -= count
            self._places.notify()

    def _finish_what_runs(self) -> None:
        """Let running jobs end within the grace time and give the rest back, all the while keeping the lease."""
        _log.info("%s leaves: no new jobs, %d run", self.name, self._taken)
        grace = float("inf") if self._settings.burst else self._settings.grace
        give_up = time.monotonic() + grace
        self._loop.close()
        while self._loop.is_alive:
            self._through_outages(self._keep_alive)
            if self._told_to_hurry or time.monotonic() >= give_up:
                self._loop.give_back(hurry=self._told_to_hurry)
            self._loop.wait(_SHORT_PAUSE)
        while self._loop.failure is None and self._recorder.is_alive and self._taken:
            self._through_outages(self._keep_alive)
            with self._places:
                self._places.wait(timeout=_SHORT_PAUSE)
        if self._given_back:
            self._insist(lambda: self._takeover.put_back(self._given_back))
        _log.info("%s has left: %d jobs ended, %d given back", self.name, self.done, self.tally.given_back)
