"""What the gateway counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

TYPE = CONTENT_TYPE_LATEST

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds: from an idle small model to a minute in a queue."""


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "minilab_gateway_requests", "HTTP requests by route and status.", ["route", "status"], registry=registry
        )
        self.tokens = Counter("minilab_gateway_tokens", "Tokens that were read for clients.", registry=registry)
        self.cancelled = Counter(
            "minilab_gateway_cancelled", "Completions that were cancelled as their client went away.", registry=registry
        )
        self.readers = Gauge("minilab_gateway_readers", "Token streams that are followed now.", registry=registry)
        self.batches = Gauge("minilab_gateway_batches", "Batches that this process drives now.", registry=registry)
        self.first_token = Histogram(
            "minilab_gateway_first_token_seconds",
            "Seconds from a request to its first token.",
            buckets=_FIRST_TOKEN,
            registry=registry,
        )

    def count_request(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
