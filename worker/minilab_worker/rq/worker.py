"""The worker as RQ sees it: registered, with heartbeats, open to RQ's commands. It never forks or performs a job."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import worker_registration
from rq.command import parse_payload
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker, WorkerStatus

from minilab_gen.protocol.jobs import OUR_WORKERS

_log = logging.getLogger(__name__)

_COMMANDS_PAUSE: Final = 0.5
"""Seconds until commands are listened to again when the connection for them has broken."""


class RqWorker(BaseWorker):
    """An RQ worker that has several executions at a time; the caller keeps track of them."""

    death_penalty_class = TimerDeathPenalty  # callbacks run in a thread, where RQ's SIGALRM cannot
    on_stop: Callable[[str], None]
    """Called with the id of a job that RQ's stop commands name."""

    def __init__(self, connection: redis.Redis, queues: Sequence[str], lease: int) -> None:
        """``connection`` becomes the worker's own: it never sends a command twice. ``lease`` is in seconds."""
        name = f"{OUR_WORKERS}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        timeout = connection.connection_pool.connection_kwargs["socket_timeout"]
        connection.set_retry(Retry(NoBackoff(), 0))  # to move jobs, or to record an end, is no thing to do twice
        super().__init__(
            list(queues),
            name=name,
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=max(60, 4 * lease),
        )
        # RQ has just raised it to most of a minute, during which no lease would be renewed.
        connection.connection_pool.connection_kwargs["socket_timeout"] = timeout
        self.on_stop = _log.debug

    def open(self) -> None:
        """Register and listen to commands. May be called again where Redis failed in the middle."""
        with self.connection.pipeline() as pipeline:
            self.birth_date = self.last_heartbeat = now()
            self.register(pipeline)
            self.set_state(WorkerStatus.IDLE, pipeline=pipeline)
            pipeline.execute()
        if self.pubsub_thread is None:
            self.subscribe()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Stop listening and unregister."""
        self._stop_listening()
        self.register_death()  # type: ignore[no-untyped-call]

    def register(self, pipeline: Any) -> None:
        """Write RQ's record of the worker, which Redis may have lost, or RQ struck off."""
        pipeline.hset(self.key, mapping=self.serialize())
        worker_registration.register(self, pipeline)
        self.heartbeat(pipeline=pipeline)

    def handle_payload(self, message: dict[str, Any]) -> None:
        """RQ's commands; those that stop a job go to ``on_stop``."""
        payload = parse_payload(message)
        if payload["command"] in ("stop-job", "stop-execution"):
            self.on_stop(payload["job_id"])
        else:
            super().handle_payload(message)  # type: ignore[no-untyped-call]

    def _stop_listening(self) -> None:
        """As RQ does it, but that the connection is closed by the thread that reads from it, and by no other."""
        thread: Any = self.pubsub_thread
        if self.pubsub is None or thread is None:
            return
        thread.stop()
        with contextlib.suppress(redis.RedisError):
            self.pubsub.unsubscribe()  # the answer wakes the thread
        thread.join(timeout=2 * _COMMANDS_PAUSE)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Go on listening: RQ's own handler ends the thread at a command that it cannot read."""
        _log.debug("RQ's commands are not received for a moment: %r", exc)
        time.sleep(_COMMANDS_PAUSE)
