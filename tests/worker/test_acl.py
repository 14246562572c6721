"""The two users of Redis that docs/security.md gives: each can do its work, and nothing beyond it that does harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from support.client_program import client
from support.redis_users import CLIENT, LONG, WORKER, Urls, denials
from support.references import ids_of, reference_ids
from support.waiting import wait_until

import minilab_gen
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.jobs import fetch, queue_of
from minilab_gen.protocol.script_cache import forget_connection
from minilab_gen.protocol.streams import stream_length
from minilab_gen.protocol.submission import Submission, enqueue


async def test_a_client_submits_tails_and_fetches_as_the_clients_user(
    server: redis.Redis,
    user_urls: Urls,
    start_restricted: Callable[..., Worker],
    served: ServedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])
    start_restricted()

    job_id = minilab_gen.submit((5, 6), max_new_tokens=60, stop_ids=(), priority="high", ttl=60)

    events = list(minilab_gen.tail(job_id))
    assert ids_of(events) == reference_ids(served, LONG)
    assert [event async for event in minilab_gen.tail_async(job_id)] == events
    answer = minilab_gen.result(job_id)
    assert answer is not None
    assert list(answer.ids) == ids_of(events)
    assert denials(server) == []


def test_the_whole_command_line_works_as_the_clients_user(
    server: redis.Redis,
    user_urls: Urls,
    start_restricted: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    start_restricted()
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])
    monkeypatch.setenv("FORCE_COLOR", "1")  # else watch would show no job
    wait_until(lambda: server.exists(keys.model_card(keys.DEFAULT_MODEL)))
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"custom_id": "x", "ids": [5, 6]}\n', encoding="utf-8")

    commands: list[tuple[str, ...]] = [
        ("submit", "Phileas Fogg", "--job-id", "a", "--max-queued", "10", "--follow", "--json"),
        ("submit", "Phileas Fogg", "--job-id", "g", "--n", "3", "--ttl", "60", "--follow"),
        *((command, name) for command in ("tail", "status", "result", "cancel") for name in ("a", "g")),
        *((command, "--json") for command in ("jobs", "models", "workers")),
        ("watch", "--once"),
        *(("retry", "a", "--follow"), ("retry", "g", "--follow")),
        *(("verify", "a"), ("verify", "g"), ("verify", "--last", "2")),
        ("batch", str(lines), "--output", str(tmp_path / "out.jsonl"), "--max-queued", "10"),
        ("cancel", "--all-queued", "--yes"),
    ]

    assert {command: client(*command).exit_code for command in commands} == dict.fromkeys(commands, 0)
    taken = client("submit", "Phileas Fogg", "--job-id", "a")
    assert (taken.exit_code, "in use" in taken.stderr) == (2, True)
    assert denials(server) == []


def test_doctor_finds_the_clients_user_to_have_its_rights(
    server: redis.Redis, user_urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])

    diagnosis = client("doctor", "--json")

    levels = {finding["check"]: finding["level"] for finding in json.loads(diagnosis.stdout)}
    assert (diagnosis.exit_code, levels["rights"], levels["clock"]) == (0, "ok", "ok")
    assert set(denials(server)) == {(CLIENT, "config|get")}


def test_the_clients_user_ends_jobs_that_no_worker_will(
    server: redis.Redis, user_urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("waits", "late", "broken", "gone"):
        enqueue(server, LONG, Submission(job_id=job_id, ttl=1000))
    late, broken, gone = (fetch(server, job_id) for job_id in ("late", "broken", "gone"))
    late.meta["expires_at"] = 0.0
    late.save_meta()
    queue_of(server, broken.origin).remove(broken)
    broken.set_status("failed")  # type: ignore[arg-type]
    broken.failed_job_registry.add(broken, ttl=60, exc_string="it broke")
    gone.cancel()
    forget_connection(server)
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])

    assert client("cancel", "waits").exit_code == 0

    ends = {job_id: list(minilab_gen.tail(job_id)) for job_id in ("waits", "late", "broken", "gone")}
    assert {job_id: [getattr(event, "reason", None) for event in events] for job_id, events in ends.items()} == {
        "waits": ["cancelled"],
        "late": ["timeout"],
        "broken": ["error"],
        "gone": ["cancelled"],
    }
    assert denials(server) == []


def test_the_clients_user_cancels_a_running_job(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_restricted(slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])

    assert minilab_gen.cancel(job_id) == "started"

    *_, end = minilab_gen.tail(job_id)
    assert isinstance(end, EndEvent)
    assert end.reason == "cancelled"
    assert denials(server) == []


FORBIDDEN: Final = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "friend", "on", "nopass", "+@all", "~*"),
    ("KEYS", "*"),
    ("SHUTDOWN", "NOSAVE"),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("DEBUG", "SLEEP", "0"),
    ("REPLICAOF", "elsewhere", "6379"),
    ("MODULE", "LIST"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "FLUSH"),
    ("SAVE",),
    ("GET", "other"),
    ("SET", "other", "1"),
]

OF_WORKERS: Final = [
    ("DEL", keys.token_stream("a")),
    ("DEL", "rq:job:a"),
    ("SET", keys.model_card("base"), "{}"),
    ("SET", keys.worker_lease("minilab-x"), "1"),
    ("SET", keys.worker_stats("minilab-x"), "{}"),
    ("SET", keys.expired_leases("a"), "3"),
    ("ZADD", "rq:wip:minilab.base", "1", "a:b"),
    ("ZADD", "rq:executions:a", "1", "b"),
    ("HSET", "rq:worker:minilab-x", "state", "busy"),
    ("PUBLISH", "rq:pubsub:minilab-x", "{}"),
    ("SUBSCRIBE", "rq:pubsub:minilab-x"),
    ("BLMOVE", "rq:queue:minilab.base", "rq:queue:minilab.base:intermediate", "LEFT", "RIGHT", "1"),
]


@pytest.mark.parametrize("user", [CLIENT, WORKER])
def test_neither_user_administers_or_leaves_its_keys(server: redis.Redis, user_urls: Urls, user: str) -> None:
    assert [command for command in FORBIDDEN if may(server, user, *command)] == []


@pytest.mark.parametrize("user", [CLIENT, WORKER])
@pytest.mark.parametrize("call", ["'GET', 'other'", "'SET', 'other', '1'", "'FLUSHALL'", "'KEYS', '*'"])
def test_a_script_may_do_no_more_than_its_user(server: redis.Redis, user_urls: Urls, user: str, call: str) -> None:
    server.set("other", "secret")

    with closing(connect(user_urls[user])) as connection, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        connection.eval(f"return redis.call({call})", 0)

    assert server.get("other") == b"secret"


def test_the_clients_user_cannot_act_as_a_worker(server: redis.Redis, user_urls: Urls) -> None:
    assert [command for command in OF_WORKERS if may(server, CLIENT, *command)] == []
    assert [command for command in OF_WORKERS if not may(server, WORKER, *command)] == []


def may(server: redis.Redis, user: str, *command: str) -> bool:
    """Whether Redis would let a user run a command."""
    return bool(server.execute_command("ACL", "DRYRUN", user, *command) == b"OK")
