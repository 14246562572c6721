"""What a Redis server says about itself, and whether that is good for us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

ServerInfo = Mapping[str, Any]
"""The fields of INFO. Servers of other makes leave some out, so each may be missing."""


def server_info(connection: redis.Redis) -> ServerInfo:
    """What INFO tells; nothing where the server or its rules for our user do not let us ask."""
    try:
        info: ServerInfo = connection.info()
    except redis.ResponseError:
        return {}
    return info


def eviction_warning(info: ServerInfo) -> str | None:
    """What is wrong with the eviction policy and what to do about it; None where it is right or not known."""
    policy = info.get("maxmemory_policy")
    if policy in (None, "noeviction"):
        return None
    return f"maxmemory-policy {policy} lets a full Redis drop jobs and tokens; set it to noeviction"
