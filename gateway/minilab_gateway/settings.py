"""The settings of one gateway process, read once in ``cli.py``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minilab_gen.protocol import keys

DEFAULT_MAX_BODY: Final = 16 * 2**20
"""Bytes: a prompt of the largest number of characters, each written as an escape of twelve letters, and some room."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway is told."""

    redis_url: str | None = None
    """None means the private server of this user."""
    api_keys: Path | None = None
    queue_wait: float = 30.0
    """Seconds that a request waits for a worker of its model where there is none."""
    max_queued: int | None = None
    max_body: int = DEFAULT_MAX_BODY
    timeout: int = keys.DEFAULT_TIMEOUT
    """Seconds that a job may run."""
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""
    idempotency_header: str = "Idempotency-Key"
    ping: float = 15.0
    """Seconds between two comments on a stream: proxies cut what is silent for 30 or 60."""
