"""The thread of each gateway process that drives batches: those that no other gateway has a lease of.

One thread for all of them, a step of each in turn: steps are short, and what takes long runs in the workers.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

from minilab_gateway.batches.batch import Batch
from minilab_gateway.batches.batch_run import BatchRun, Means
from minilab_gateway.batches.batch_store import LEASE_SECONDS, BatchStore, LeaseLostError
from minilab_gateway.batches.file_store import FileStore
from minilab_gateway.limits import Limits
from minilab_gateway.metrics import Metrics
from minilab_gateway.settings import GatewaySettings
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.refusals import refuses_writes

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25
"""Seconds between two rounds: they double while nothing happens, so that long jobs cost few looks."""

_LOOKS_SHARE: Final = 4
"""A pause is at least so many times as long as the round before it: the requests of clients need the processor, too."""

_LOOK_SECONDS: Final = 1.0
"""Between looks for batches that nobody drives."""

_OUTAGE_PAUSE: Final = 0.5

_MOST_BATCHES: Final = 32
"""That one process drives at once; further ones wait, or another gateway takes them."""

_SHUN_SECONDS: Final = 60.0
"""For which a batch is left alone of which a step has failed for a reason that nobody foresaw."""


class Driver:
    """Drives batches from its start to its stop."""

    def __init__(
        self,
        connection: redis.Redis,
        model: Callable[[object], AskedModel],
        settings: GatewaySettings,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        """``connection`` is not closed here. ``model`` gives a model by its name, or raises UnknownModelError."""
        self._batches, self._metrics = BatchStore(connection), metrics
        name = secrets.token_hex(8)
        self._means = Means(
            connection,
            self._batches,
            FileStore(connection),
            model,
            name,
            settings.batch_jobs,
            settings.timeout,
            settings.max_queued,
            limits,
        )
        self._runs: dict[str, BatchRun] = {}
        self._held_at: dict[str, float] = {}
        self._shunned: dict[str, float] = {}
        self._looked_at = -_LOOK_SECONDS
        self._wake, self._is_ending = threading.Event(), False
        self._thread = threading.Thread(target=self._serve, name="batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hand the batches to the other gateways."""
        self._is_ending = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """There is something to do: look at once."""
        self._looked_at = -_LOOK_SECONDS
        self._wake.set()

    def _serve(self) -> None:
        pause, is_out = _FIRST_PAUSE, False
        while not self._is_ending:
            began = time.monotonic()
            try:
                progressed = self._round()
                is_out = False
            except (redis.RedisError, RedisUnavailableError) as error:
                if not is_out:
                    _log.warning("batches wait, as Redis does not do what it is asked: %s", error)
                is_out, progressed = True, False
            took = time.monotonic() - began
            pause = _FIRST_PAUSE if progressed else min(2 * pause, _LONGEST_PAUSE)
            self._wake.wait(_OUTAGE_PAUSE if is_out else max(pause, _LOOKS_SHARE * took))
            self._wake.clear()
        self._hand_over()

    def _hand_over(self) -> None:
        try:
            for batch_id in self._runs:
                self._batches.release(batch_id, self._means.driver)
        except redis.RedisError as error:
            _log.warning("other gateways wait %d s for the batches of this one: %s", LEASE_SECONDS, error)

    def _round(self) -> bool:
        """A step of each batch; whether anything came of one. Raises what redis-py raises."""
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._take_more()
        progressed = False
        for batch_id, run in list(self._runs.items()):
            if self._is_ending:
                break
            progressed |= self._step(batch_id, run)
        self._metrics.batches.set(len(self._runs))
        return progressed

    def _take_more(self) -> None:
        now = time.monotonic()
        self._shunned = {batch_id: until for batch_id, until in self._shunned.items() if until > now}
        for batch_id in self._batches.open_ids():
            if len(self._runs) >= _MOST_BATCHES:
                return
            if batch_id in self._runs or batch_id in self._shunned:
                continue
            if not self._batches.hold(batch_id, self._means.driver):
                continue
            (batch,) = self._batches.read([batch_id])
            if batch is None:
                self._batches.close(batch_id)
                continue
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        _log.info("batch %s is driven here, %s", batch.batch_id, batch.status)
        self._runs[batch.batch_id] = BatchRun(self._means, batch)
        self._held_at[batch.batch_id] = time.monotonic()

    def _step(self, batch_id: str, run: BatchRun) -> bool:
        try:
            self._renew(batch_id)
            progressed = run.step()
        except LeaseLostError as error:
            _log.warning("%s", error)
            self._drop(batch_id)
            return True
        except (redis.ConnectionError, redis.TimeoutError, RedisUnavailableError):
            raise
        except Exception as error:
            if isinstance(error, redis.RedisError) and refuses_writes(error):
                raise
            _log.exception("batch %s: a step failed; it is tried again in %.0f s", batch_id, _SHUN_SECONDS)
            self._shunned[batch_id] = time.monotonic() + _SHUN_SECONDS
            self._drop(batch_id)
            self._batches.release(batch_id, self._means.driver)
            return False
        if run.is_over:
            _log.info("batch %s has ended: %s", batch_id, run.batch.status)
            self._drop(batch_id)
            self._batches.release(batch_id, self._means.driver)
        return progressed

    def _renew(self, batch_id: str) -> None:
        now = time.monotonic()
        if now - self._held_at[batch_id] < LEASE_SECONDS / 4:
            return
        if not self._batches.hold(batch_id, self._means.driver):
            raise LeaseLostError(f"the batch {batch_id} is driven by another gateway")
        self._held_at[batch_id] = now

    def _drop(self, batch_id: str) -> None:
        del self._runs[batch_id], self._held_at[batch_id]
