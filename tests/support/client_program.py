"""What the tests of ``minilab-client`` share: running it, and a stand-in for the worker. It must not hold a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import fakeredis
import pytest
import redis
from click.testing import CliRunner, Result
from minilab_client.cli import main
from rq import Queue, Worker
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, EndReason, TokenEvent
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.streams import publish
from minilab_gen.protocol.submission import EXPIRES_AT, Submission, enqueue
from minilab_gen.request import GenerationRequest

TTL = 600
"""Seconds of life for what a stand-in writes: longer than any test."""


def fake_redis(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """An empty Redis, to which each connection of the client leads; its blocking reads wait for a moment only."""
    server = fakeredis.FakeServer()

    def connect(url: str | None = None, wait: float = 0.0) -> redis.Redis:
        return fakeredis.FakeRedis(server=server, protocol=2, legacy_responses=True)

    monkeypatch.setattr("minilab_gen.protocol.connection.connect", connect)
    for module in ("tail", "tail_together"):
        monkeypatch.setattr(f"minilab_gen.protocol.{module}.BLOCK_MS", 20)
    return connect()


def client(*arguments: str, stdin: str | bytes | None = None, **variables: str) -> Result:
    """Run the program in this process."""
    result = CliRunner(env=variables).invoke(main, arguments, input=stdin, prog_name="minilab-client")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def events(result: Result) -> list[dict[str, Any]]:
    """The JSON objects on stdout, read strictly."""
    return [json.loads(line, parse_constant=pytest.fail) for line in result.stdout.splitlines()]


def queued(connection: redis.Redis, priority: keys.Priority = "normal") -> list[str]:
    """The ids of the jobs that wait."""
    name = keys.queue_name(keys.DEFAULT_MODEL, priority)
    return list(Queue(name, connection=connection, serializer=JSONSerializer).get_job_ids())


def submit(connection: redis.Redis, job_id: str, ttl: int | None = None) -> str:
    """A job in the queue."""
    return enqueue(connection, GenerationRequest((5, 12, 7)), Submission(job_id=job_id, ttl=ttl))


def start(connection: redis.Redis, job_id: str) -> None:
    """What a worker does first with a job, as far as clients see it."""
    job = fetch(connection, job_id)
    Queue(job.origin, connection=connection, serializer=JSONSerializer).remove(job)
    job.set_status(JobStatus.STARTED)


def write(connection: redis.Redis, job_id: str, *texts: str, after: int = 0) -> None:
    """Tokens with these texts and the ids 100 + n."""
    tokens = [(job_id, TokenEvent(n, 100 + n, text)) for n, text in enumerate(texts, start=after + 1)]
    publish(connection, tokens, running_ttl=TTL)


def end(connection: redis.Redis, job_id: str, tokens: int, reason: EndReason = "length", **details: Any) -> None:
    """The terminal entry, then RQ's records."""
    publish(connection, [(job_id, EndEvent(reason, tokens, 3, **details))], running_ttl=TTL)
    job = fetch(connection, job_id)
    queue = Queue(job.origin, connection=connection, serializer=JSONSerializer)
    succeeded = reason in ("stop", "length", "context")
    job.set_status(JobStatus.FINISHED if succeeded else JobStatus.FAILED)
    if succeeded:
        queue.finished_job_registry.add(job, TTL)
    else:
        queue.failed_job_registry.add(job, ttl=TTL, exc_string=str(details.get("error", reason)))


def overdue(connection: redis.Redis, job_id: str) -> None:
    """A job in the queue that has waited longer than it may."""
    submit(connection, job_id, ttl=1)
    job = fetch(connection, job_id)
    job.meta[EXPIRES_AT] = 0.0
    job.save_meta()


def run(
    connection: redis.Redis, job_id: str, texts: Sequence[str], reason: EndReason = "length", **details: Any
) -> None:
    """A whole job, from the queue to its end."""
    submit(connection, job_id)
    start(connection, job_id)
    write(connection, job_id, *texts)
    end(connection, job_id, len(texts), reason, **details)


def announce_worker(connection: redis.Redis, name: str = "minilab-test", *, alive: bool = True) -> None:
    """A worker of ours in RQ's records, with its lease or without."""
    Worker(keys.queue_names(keys.DEFAULT_MODEL), name=name, connection=connection).register_birth()
    if alive:
        connection.set(keys.worker_lease(name), 1, ex=TTL)


def diagnosis(*arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit code, and what was found by each check."""
    result = client("doctor", "--json", *arguments)
    assert result.stderr == ""
    found: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(result.stdout):
        found.setdefault(finding["check"], []).append(finding)
    return result.exit_code, found


def finding(check: str) -> dict[str, str]:
    """The one finding of a check."""
    (found,) = diagnosis()[1][check]
    return found


def refusal(*arguments: str, stdin: str | bytes | None = None, **variables: str) -> str:
    """The one line on stderr for a refused submission."""
    result = client("submit", *arguments, stdin=stdin, **variables)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line
