"""RQ's cache of scripts. RQ has no public way to clear it, so this module alone touches a private name of RQ here."""

from __future__ import annotations

import contextlib

import redis
from rq import scripts


def forget_connection(connection: redis.Redis) -> None:
    """Make RQ forget a connection that is about to be closed; else it keeps each one on which a job was submitted.

    Not while another thread submits on the same connection.
    """
    with contextlib.suppress(AttributeError):  # an RQ without that cache keeps nothing
        scripts._registered_scripts.pop(connection, None)
