"""The worker: claims jobs while there are places, hands them to the engine, records how they ended.

Three threads: this one claims and keeps RQ's heartbeats; the engine's computes and publishes; the recorder's writes
ends into RQ's books. A place is free again only when its job's end is recorded.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

import redis
from rq.job import Job

from minilab_gen.engine import Engine
from minilab_gen.errors import RedisUnavailableError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import publish_card
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.endings import has_expired
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import request_of
from minilab_gen.protocol.streams import publish
from minilab_gen.request import GenerationRequest
from minilab_worker.engine_loop import REDIS_PATIENCE, EngineLoop
from minilab_worker.ledger import Claim, Closing, Ledger
from minilab_worker.publisher import Publisher
from minilab_worker.run import Run
from minilab_worker.serving import ServedModel
from minilab_worker.takeover import MOST_DEATHS, Takeover

_log = logging.getLogger(__name__)

IDLE_WAIT: Final = 0.05
"""Seconds of one wait for a job: a job of high or low priority is seen that late by an idle worker."""

_PAUSE: Final = 0.5
"""Seconds between two attempts while Redis is away, and of a wait for a free place: well below a third of a lease."""

_SHORT_PAUSE: Final = 0.05
"""Seconds between two looks at what still runs while the worker leaves."""

_CARD_INTERVAL: Final = 3600.0
"""Seconds between two announcements of the model, whose card lives a day."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told when it starts."""

    queues: tuple[str, ...]
    max_batch: int
    redis_url: str | None = None
    burst: bool = False
    """Leave when the queues are empty."""
    threads: int | None = None
    lease: int = 15
    """Seconds after its last heartbeat at which a worker counts as dead."""
    grace: float = 25.0
    """Seconds that running jobs get to end when the worker is told to stop; then they go back to their queue."""


class Worker:
    """Serves one model from its queues until it is told to stop."""

    def __init__(self, settings: WorkerSettings, served: ServedModel) -> None:
        self._settings, self._served = settings, served
        self._connection = connect(settings.redis_url, wait=REDIS_PATIENCE)
        self._ledger = Ledger(connect(settings.redis_url), settings.queues, settings.lease)
        self._loop = EngineLoop(
            Engine(served.model, settings.max_batch),
            Publisher(connect(settings.redis_url)),
            self,
            settings.threads,
        )
        self._takeover = Takeover(self._ledger, settings.lease)
        self._ledger.on_stop = self._loop.stop_job
        self._closings: queue.SimpleQueue[Closing | None] = queue.SimpleQueue()
        self._recorder = threading.Thread(target=self._record_ends, name="recorder", daemon=True)
        self._places = threading.Condition()
        self._taken = 0
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._dropped: list[Run] = []
        self._away_since: float | None = None
        self._next_beat = self._next_card = 0.0
        self.done = 0
        """Jobs whose end is recorded."""

    @property
    def name(self) -> str:
        return str(self._ledger.name)

    def serve(self) -> None:
        """Run jobs until told to stop or, in burst mode, until none is left. Raises what ended the engine's loop."""
        self._ledger.open()
        self._loop.start()
        self._recorder.start()
        _log.info("%s serves %s, %d places", self.name, ", ".join(self._settings.queues), self._settings.max_batch)
        try:
            while not self._is_over():
                self._through_outages(self._look_after_jobs)
            self._finish_what_runs()
        finally:
            self._closings.put(None)
            self._recorder.join()
            with contextlib.suppress(redis.RedisError):
                self._ledger.close()
            self._ledger.connection.close()
            self._connection.close()
        if self._loop.failure is not None:
            raise self._loop.failure

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end :meth:`serve`; the main thread's to call."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def stop(self) -> None:
        """Take no more jobs; those that run are finished within the grace time. Said again: at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def on_ended(self, runs: list[Run]) -> None:
        """Have the ends of runs recorded."""
        for run in runs:
            assert run.end is not None
            self._closings.put(_closing(run, run.end, run.result()))

    def on_dropped(self, runs: list[Run]) -> None:
        """Free the places of runs that go on elsewhere."""
        self._dropped += runs
        for run in runs:
            self._ledger.forget(run.execution)
        self._free_places(len(runs))

    def still_ours(self, runs: list[Run]) -> list[Run]:
        """Those that RQ's books still show as this worker's."""
        held = self._ledger.still_held([run.execution for run in runs])
        return [run for run in runs if run.execution.id in held]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _log.info("%s: %s, no new jobs", self.name, signal.Signals(number).name)
        self.stop()

    def _is_over(self) -> bool:
        return self._stop.is_set() or not self._loop.is_alive

    def _look_after_jobs(self) -> None:
        self._keep_alive()
        self._takeover.sweep_if_due()
        self._claim_what_fits()

    def _through_outages(self, work: Callable[[], None]) -> None:
        """Do something with Redis; while Redis is away, come back after a pause, but not for ever."""
        try:
            work()
            self._away_since = None
        except redis.RedisError as error:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > REDIS_PATIENCE:
                raise RedisUnavailableError(f"Redis was away for {REDIS_PATIENCE:.0f} s: {error}") from error
            _log.warning("Redis is away: %s", error)
            self._stop.wait(_PAUSE)

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            if not self._ledger.beat():
                self._loop.doubt()
            self._next_beat = now + self._settings.lease / 3
        if now >= self._next_card:
            publish_card(self._connection, self._served.card, self._served.tokenizer.to_json())
            self._next_card = now + _CARD_INTERVAL

    def _claim_what_fits(self) -> None:
        """Claim jobs for the places that are free; with none free, or no job, wait a little."""
        with self._places:
            free = self._settings.max_batch - self._taken
            if not free:
                self._places.wait(timeout=_PAUSE)
                return
        claims = self._ledger.claim(free, IDLE_WAIT)
        with self._places:
            self._taken += len(claims)
        for claim in claims:
            self._begin(claim)
        if not claims and self._settings.burst and not self._taken:
            self.stop()

    def _begin(self, claim: Claim) -> None:
        """Give a claimed job to the engine, or end it if it cannot or need not run."""
        tokens = [event for event in claim.stream if isinstance(event, TokenEvent)]
        ended = claim.stream[-1] if claim.stream and isinstance(claim.stream[-1], EndEvent) else None
        try:
            request = self._checked_request(claim.job)
        except RequestError as error:
            self._end_unstarted(claim, ended or EndEvent("error", len(tokens), 0, error=str(error)))
            return
        prompt_tokens = len(request.prompt)
        if ended is None and claim.deaths >= MOST_DEATHS:
            why = f"{claim.deaths} workers died while they ran this job"
            ended = EndEvent("error", len(tokens), prompt_tokens, error=why)
        elif ended is None and claim.cancelled:
            ended = EndEvent("cancelled", len(tokens), prompt_tokens)
        elif ended is None and not tokens and has_expired(claim.job):
            ended = EndEvent("timeout", 0, prompt_tokens, phase="waiting")
        run = Run(claim.job, claim.execution, request, tokens, self._served.tokenizer)
        if ended is None:
            self._loop.add(run)
            return
        self._end_unstarted(claim, ended, run)

    def _checked_request(self, job: Job) -> GenerationRequest:
        request = request_of(job)
        request.check_fits(self._served.card.limits)
        return request

    def _end_unstarted(self, claim: Claim, end: EndEvent, run: Run | None = None) -> None:
        publish(self._connection, [(claim.job.id, end)], running_ttl=keys.RETENTION)
        result = None
        if run is not None:
            run.events.append(end)
            result = run.result()
        self._closings.put(_closing(claim, end, result))

    def _record_ends(self) -> None:
        """The recorder's thread: all ends that have come in meanwhile are written together."""
        while (first := self._closings.get()) is not None:
            closings: list[Closing] = [first]
            while not self._closings.empty():
                following = self._closings.get()
                if following is None:
                    self._closings.put(None)
                    break
                closings.append(following)
            self._record(closings)
            self.done += len(closings)
            self._free_places(len(closings))

    def _free_places(self, count: int) -> None:
        with self._places:
            self._taken -= count
            self._places.notify()

    def _record(self, closings: list[Closing]) -> None:
        pause = 0.1
        while True:
            try:
                self._ledger.record(closings)
                return
            except redis.RedisError as error:
                if not self._loop.is_alive and self._loop.failure is not None:
                    return  # Redis is given up
                _log.warning("ends of %d jobs are kept until Redis is back: %s", len(closings), error)
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    def _finish_what_runs(self) -> None:
        """Let running jobs end within the grace time and give the rest back, all the while keeping the lease."""
        grace = float("inf") if self._settings.burst else self._settings.grace
        give_up = time.monotonic() + grace
        self._loop.close()
        while self._loop.is_alive:
            self._through_outages(self._keep_alive)
            if self._hurry.is_set() or time.monotonic() >= give_up:
                self._loop.give_back()
            self._loop.wait(_SHORT_PAUSE)
        while self._loop.failure is None and self._taken:
            self._through_outages(self._keep_alive)
            with self._places:
                self._places.wait(timeout=_SHORT_PAUSE)
        if self._dropped:
            self._through_outages(self._put_back_dropped)

    def _put_back_dropped(self) -> None:
        """Return what was not finished to the head of its queue, the oldest first in line."""
        mine = {run.execution.id for run in self._dropped}
        holdings = [holding for holding in self._ledger.holdings() if holding.execution_id in mine]
        order = {run.execution.id: place for place, run in enumerate(self._dropped)}
        for holding in sorted(holdings, key=lambda holding: order[holding.execution_id], reverse=True):
            if self._ledger.put_back(holding, if_dead=False):
                _log.info("%s: not finished, queued again", holding.job_id)


def _closing(of: Claim | Run, end: EndEvent, result: dict[str, object] | None) -> Closing:
    """What RQ is to record of an end."""
    if end.succeeded:
        return Closing(of.job, of.execution, result=result)
    if end.reason == "cancelled":
        return Closing(of.job, of.execution)
    why = end.error or f"the job ran out of time while {end.phase}"
    return Closing(of.job, of.execution, failure=why)
