"""The settings of one gateway process, read once in ``cli.py``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from minilab_gen.protocol import keys

DEFAULT_MAX_BODY: Final = 16 * 2**20
"""Bytes: a prompt of the largest number of characters, each written as an escape of twelve letters, and some room."""


DEFAULT_MAX_FILE: Final = 100_000_000
"""Bytes: two thousand for each of the most lines that a batch may have. Redis holds them in memory."""

DEFAULT_MAX_FILES_BYTES: Final = 1_000_000_000
"""Bytes of memory that one key may fill: ten of the largest files, answers among them."""

DEFAULT_BATCH_JOBS: Final = 128
"""Two workers of 64 slots have as many; the queue holds them behind whatever else is asked."""

BATCH_WINDOW: Final = 24 * 3600


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
    max_file: int = DEFAULT_MAX_FILE
    """Bytes of a file that is uploaded."""
    max_files_bytes: int = DEFAULT_MAX_FILES_BYTES
    """Bytes of all files of a key above which none is taken."""
    batch_jobs: int = DEFAULT_BATCH_JOBS
    """Jobs of one batch in the queue or running."""
    batch_window: int = BATCH_WINDOW
    """Seconds in which a batch is to end."""
    timeout: int = keys.DEFAULT_TIMEOUT
    """Seconds that a job may run."""
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""
    idempotency_header: str = "Idempotency-Key"
    ping: float = 15.0
    """Seconds between two comments on a stream: proxies cut what is silent for 30 or 60."""
