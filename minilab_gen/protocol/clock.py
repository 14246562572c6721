"""The time by the server's clock, the one clock that all processes share that compare moments in Redis.

A machine's own may be a day slow; what it writes into a registry of RQ's is then overdue for all others. RQ writes
by the machine's clock, so what others compare is written again behind it, in the same transaction.
"""

from __future__ import annotations

from typing import Any

import redis


def server_time(connection: redis.Redis) -> float:
    """Unix time in seconds."""
    return unix_time(connection.time())


def unix_time(answer: Any) -> float:
    """The same from the answer to TIME, where it was asked for in a pipeline."""
    seconds, microseconds = answer
    return float(seconds) + float(microseconds) / 1e6
