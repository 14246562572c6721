"""Which Redis is meant where no program says it. It loads no Redis library."""

from __future__ import annotations

import os


def redis_url() -> str | None:
    """The address in ``MINILAB_REDIS_URL``; None when it is unset or empty, which means the private server."""
    return os.environ.get("MINILAB_REDIS_URL", "").strip() or None
