"""The HTTP server that Prometheus scrapes.

Loaded only when metrics are asked for.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from minilab_gen.errors import RequestError


class MetricsServer:
    """Answers ``GET /metrics``; opened before a model is loaded, so that a port in use is told at once."""

    def __init__(self, host: str, port: int) -> None:
        """Port 0 takes any that is free. Raises RequestError for an address that cannot be had."""
        self._host, self._registry = host, CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            rule = "--metrics-host and --metrics-port must name an address of this machine that is free"
            raise RequestError(f"{rule}, got {host} and {port}: {error.strerror or error}") from error

    @property
    def url(self) -> str:
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._server.server_port}/metrics"

    def show(self, metrics: Collector) -> None:
        """Answer with these, too, from now on."""
        self._registry.register(metrics)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
