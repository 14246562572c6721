"""A worker's counters as Prometheus wants them.

Loaded only when metrics are asked for. A worker keeps its own counts because the library's histograms take a lock for
each value, and a worker has twenty thousand a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import redis
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from redis.backoff import NoBackoff
from redis.retry import Retry

from minilab_gen.protocol.cards import ModelCard
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.jobs import queue_of
from minilab_worker.telemetry.counters import Histogram

if TYPE_CHECKING:
    from minilab_worker.worker import Worker, WorkerSettings

_log = logging.getLogger(__name__)

REDIS_SECONDS: Final = 1.0
"""Seconds that a scrape waits for Redis: Prometheus gives up a scrape after ten by default."""


class WorkerMetrics(Collector):
    """Everything that one worker shows, put together at each scrape."""

    def __init__(self, worker: Worker, settings: WorkerSettings, card: ModelCard) -> None:
        self._worker, self._card = worker, card
        self._slots = settings.max_batch
        self._depths = QueueDepths(settings)

    def collect(self) -> Iterator[Metric]:
        yield from self._about_the_worker()
        yield from self._depths.collect()
        yield from self._about_jobs()
        yield from self._about_tokens()
        yield from self._about_steps()
        yield from self._about_outages()

    def close(self) -> None:
        self._depths.close()

    def _about_the_worker(self) -> Iterator[Metric]:
        card = self._card
        model = {"name": card.name, "fingerprint": card.fingerprint, "exactness": card.exactness}
        yield InfoMetricFamily("minilab_model", "The model served, and what the check of its kernels has found.", model)
        yield GaugeMetricFamily("minilab_slots", "Jobs that the worker can run at a time.", self._slots)
        yield GaugeMetricFamily("minilab_slots_used", "Slots in use.", self._worker.used)

    def _about_jobs(self) -> Iterator[Metric]:
        counters = self._worker.counters
        yield _counter("minilab_jobs_started", "Jobs claimed.", counters.started)
        yield _counter("minilab_jobs_resumed", "Of these, jobs with tokens of other workers.", counters.resumed)
        yield _counters("minilab_jobs_ended", "Jobs ended, by the reason.", "reason", counters.ended.items())
        yield _counter("minilab_jobs_returned", "Jobs requeued as the worker drained.", counters.returned)
        yield _counter("minilab_jobs_lost", "Jobs that other workers took over from this one.", counters.lost)
        yield _counter("minilab_takeovers", "Jobs requeued for workers whose lease had expired.", counters.taken_over)
        yield _histogram("minilab_queue_wait_seconds", "From submission to claim.", counters.queue_wait)

    def _about_tokens(self) -> Iterator[Metric]:
        counters = self._worker.counters
        yield _counter("minilab_prompt_tokens", "Tokens of prompts read to their end.", counters.prompt_tokens)
        yield _counter("minilab_generated_tokens", "Tokens chosen.", counters.tokens)
        yield _histogram("minilab_time_to_first_token_seconds", "From submission to first token.", counters.first_token)
        yield _histogram("minilab_token_gap_seconds", "Between two tokens of a job.", counters.gap)

    def _about_steps(self) -> Iterator[Metric]:
        clock = self._worker.counters.clock
        yield _histogram("minilab_step_seconds", "A step: at most one token for every running job.", clock.steps)
        phases = clock.seconds.items()
        yield _counters("minilab_step_phase_seconds", "Time of all steps, by their phases.", "phase", phases)

    def _about_outages(self) -> Iterator[Metric]:
        outages = self._worker.outages
        counts = [(outage.what_waits, outage.count) for outage in outages]
        seconds = [(outage.what_waits, outage.seconds_before) for outage in outages]
        yield _counters("minilab_redis_outages", "Times that Redis was unavailable, by what waited.", "waiting", counts)
        yield _counters("minilab_redis_outage_seconds", "How long, once it was back.", "waiting", seconds)


class QueueDepths:
    """How many jobs wait, read from Redis at each scrape, on a connection that does not wait for it for long."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._connection = connect(settings.redis_url)
        self._connection.set_retry(Retry(NoBackoff(), 0))
        pool = self._connection.connection_pool
        pool.disconnect()
        pool.reset()  # forgets the connection that has answered a PING, which would keep its longer limits
        pool.connection_kwargs |= {"socket_timeout": REDIS_SECONDS, "socket_connect_timeout": REDIS_SECONDS}
        self._queues = [queue_of(self._connection, name) for name in settings.queues]

    def collect(self) -> Iterator[Metric]:
        depths = self._read()
        yield GaugeMetricFamily("minilab_redis_up", "1 while Redis answers, else 0.", int(depths is not None))
        family = GaugeMetricFamily("minilab_queue_jobs", "Jobs that wait, by queue.", labels=["queue"])
        for queue, depth in (depths or {}).items():
            family.add_metric([queue], depth)
        yield family

    def close(self) -> None:
        self._connection.close()

    def _read(self) -> dict[str, int] | None:
        try:
            with self._connection.pipeline(transaction=False) as pipeline:
                for queue in self._queues:
                    pipeline.llen(queue.key)
                answers = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            _log.debug("the queues cannot be measured: %s", error)
            return None
        # No number where the key is not a list.
        return {queue.name: length for queue, length in zip(self._queues, answers, strict=True) if type(length) is int}


def _counter(name: str, meaning: str, count: int) -> Metric:
    return CounterMetricFamily(name, meaning, count)


def _counters(name: str, meaning: str, label: str, counts: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=[label])
    for value, count in counts:
        family.add_metric([value], count)
    return family


def _histogram(name: str, meaning: str, histogram: Histogram) -> Metric:
    totals = list(accumulate(histogram.counts))  # what Prometheus wants: all values up to a bound
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return HistogramMetricFamily(name, meaning, list(zip(bounds, totals, strict=True)), histogram.sum)
