"""The two users of Redis that docs/security.md gives: each can do its work, and nothing beyond it that does harm."""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import redis
from click.testing import CliRunner, Result
from minilab_client.cli import main
from minilab_worker.rq import RqJobStore
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings, make_engine
from rq.command import send_stop_job_command
from support.engines import slow_engine
from support.waiting import wait_until

import minilab_gen
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.generate import generate
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.jobs import fetch, queue_of, recorded_state
from minilab_gen.protocol.script_cache import forget_connection
from minilab_gen.protocol.streams import publish, stream_length
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

DOCUMENT: Final = Path(__file__).parent.parent.parent / "docs" / "security.md"
CLIENT, WORKER = "minilab-client", "minilab-worker"
PASSWORDS: Final = {CLIENT: "c/ient@secret?#1", WORKER: "w:rker%secret&2"}
"""With every character that an address must not hold as it is."""

LONG = GenerationRequest((5, 6), max_new_tokens=60)
LEASE = 3

Urls = dict[str, str]


def documented_rules() -> dict[str, list[str]]:
    """The rules of each user, as the document's shell block gives them to redis-cli."""
    (block,) = re.findall(r"```sh\n(redis-cli ACL SETUSER.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line]
    assert all(words[:3] == ["redis-cli", "ACL", "SETUSER"] for words in lines)
    return {words[3]: words[4:] for words in lines}


@pytest.fixture
def urls(server: redis.Redis, server_url: str) -> Iterator[Urls]:
    """The addresses of both users; that nothing they did was denied unasked, is for :func:`denials` to tell."""
    for user, rules in documented_rules().items():
        given = [f">{PASSWORDS[user]}" if rule.startswith(">") else rule for rule in rules]
        server.execute_command("ACL", "SETUSER", user, *given)
    server.acl_log_reset()
    try:
        yield {
            user: server_url.replace("unix://", f"unix://{user}:{quote(password, safe='')}@")
            for user, password in PASSWORDS.items()
        }
    finally:
        server.acl_deluser(CLIENT, WORKER)


@pytest.fixture
def start(urls: Urls, served: ServedModel) -> Iterator[Callable[..., Worker]]:
    """Start workers in threads, connected as the worker's user; all are stopped at the end."""
    with ExitStack() as stack:

        def start(*, grace: float = 25.0, slow: bool = False) -> Worker:
            queues = tuple(keys.queue_names(keys.DEFAULT_MODEL))
            settings = WorkerSettings(queues, 4, redis_url=urls[WORKER], lease=LEASE, grace=grace)
            worker = Worker(settings, served, slow_engine if slow else make_engine)
            thread = threading.Thread(target=worker.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            return worker

        yield start


def denials(server: redis.Redis) -> list[tuple[str, str]]:
    """What was denied to which user since the last look."""
    log: Any = server.acl_log()
    server.acl_log_reset()
    return [(entry["username"], entry["object"]) for entry in log]


def run_client(*arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments, prog_name="minilab-client")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def reference_ids(served: ServedModel, request: GenerationRequest) -> list[int]:
    steps = generate(served.model, request.prompt, request.max_new_tokens, request.settings, request.stop_ids)
    return [step.token_id for step in steps]


def ids_of(events: list[Event]) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent)]


async def test_a_client_submits_tails_and_fetches_as_the_clients_user(
    server: redis.Redis,
    urls: Urls,
    start: Callable[..., Worker],
    served: ServedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])
    start()

    job_id = minilab_gen.submit((5, 6), max_new_tokens=60, stop_ids=(), priority="high", ttl=60)

    events = list(minilab_gen.tail(job_id))
    assert ids_of(events) == reference_ids(served, LONG)
    assert [event async for event in minilab_gen.tail_async(job_id)] == events
    answer = minilab_gen.result(job_id)
    assert answer is not None
    assert list(answer.ids) == ids_of(events)
    assert denials(server) == []


def test_the_whole_command_line_works_as_the_clients_user(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start()
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])
    monkeypatch.setenv("FORCE_COLOR", "1")  # else watch would show no job
    wait_until(lambda: server.exists(keys.model_card(keys.DEFAULT_MODEL)))
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"custom_id": "x", "ids": [5, 6]}\n', encoding="utf-8")

    commands: list[tuple[str, ...]] = [
        ("submit", "Phileas Fogg", "--job-id", "a", "--max-queued", "10", "--follow", "--json"),
        *((command, "a") for command in ("tail", "status", "result", "cancel")),
        *((command, "--json") for command in ("jobs", "models", "workers")),
        ("watch", "--once"),
        ("retry", "a", "--follow"),
        *(("verify", "a"), ("verify", "--last", "2")),
        ("batch", str(lines), "--output", str(tmp_path / "out.jsonl"), "--max-queued", "10"),
        ("cancel", "--all-queued", "--yes"),
    ]

    assert {command: run_client(*command).exit_code for command in commands} == dict.fromkeys(commands, 0)
    taken = run_client("submit", "Phileas Fogg", "--job-id", "a")
    assert (taken.exit_code, "in use" in taken.stderr) == (2, True)
    assert denials(server) == []


def test_doctor_finds_the_clients_user_to_have_its_rights(
    server: redis.Redis, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])

    diagnosis = run_client("doctor", "--json")

    levels = {finding["check"]: finding["level"] for finding in json.loads(diagnosis.stdout)}
    assert (diagnosis.exit_code, levels["rights"], levels["clock"]) == (0, "ok", "ok")
    assert set(denials(server)) == {(CLIENT, "config|get")}


def test_the_clients_user_ends_jobs_that_no_worker_will(
    server: redis.Redis, urls: Urls, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])

    assert run_client("cancel", "waits").exit_code == 0

    ends = {job_id: list(minilab_gen.tail(job_id)) for job_id in ("waits", "late", "broken", "gone")}
    assert {job_id: [getattr(event, "reason", None) for event in events] for job_id, events in ends.items()} == {
        "waits": ["cancelled"],
        "late": ["timeout"],
        "broken": ["error"],
        "gone": ["cancelled"],
    }
    assert denials(server) == []


def test_the_clients_user_cancels_a_running_job(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])

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
def test_neither_user_administers_or_leaves_its_keys(server: redis.Redis, urls: Urls, user: str) -> None:
    assert [command for command in FORBIDDEN if may(server, user, *command)] == []


@pytest.mark.parametrize("user", [CLIENT, WORKER])
@pytest.mark.parametrize("call", ["'GET', 'other'", "'SET', 'other', '1'", "'FLUSHALL'", "'KEYS', '*'"])
def test_a_script_may_do_no_more_than_its_user(server: redis.Redis, urls: Urls, user: str, call: str) -> None:
    server.set("other", "secret")

    with closing(connect(urls[user])) as connection, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        connection.eval(f"return redis.call({call})", 0)

    assert server.get("other") == b"secret"


def test_the_clients_user_cannot_act_as_a_worker(server: redis.Redis, urls: Urls) -> None:
    assert [command for command in OF_WORKERS if may(server, CLIENT, *command)] == []
    assert [command for command in OF_WORKERS if not may(server, WORKER, *command)] == []


def may(server: redis.Redis, user: str, *command: str) -> bool:
    """Whether Redis would let a user run a command."""
    return bool(server.execute_command("ACL", "DRYRUN", user, *command) == b"OK")


def test_the_workers_user_cannot_cancel(urls: Urls) -> None:
    with closing(connect(urls[WORKER])) as connection, pytest.raises(redis.exceptions.NoPermissionError):
        connection.set(keys.cancel_flag("a"), 1)


def dies_with_a_job(urls: Urls, server: redis.Redis, served: ServedModel) -> None:
    """What is left of a worker that was killed after two tokens."""
    connection = connect(urls[WORKER])
    store = RqJobStore(connection, keys.queue_names(keys.DEFAULT_MODEL), LEASE, served.card.fingerprint)
    store.open(ignore)
    (claim,) = store.claim(1, 0)
    tokens = [TokenEvent(n, token_id, "") for n, token_id in enumerate(reference_ids(served, LONG)[:2], start=1)]
    publish(connection, [(claim.job.job_id, token) for token in tokens], running_ttl=600)
    store.close()
    requeue_is_due = {claim.job.worker} - store.alive({claim.job.worker})
    assert requeue_is_due, "its lease has expired, and its job is still started"


def ignore(job_id: str) -> None:
    """No job is stopped here."""


def test_a_worker_takes_over_as_the_workers_user(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker], served: ServedModel
) -> None:
    job_id = enqueue(server, LONG, Submission())
    dies_with_a_job(urls, server, served)

    worker = start()

    wait_until(lambda: worker.done)
    assert worker.counters.taken_over == 1
    assert ids_of(list(minilab_gen.tail(job_id))) == reference_ids(served, LONG)
    assert denials(server) == []


def test_a_worker_ends_every_kind_of_job_as_the_workers_user(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker]
) -> None:
    queue = queue_of(server, keys.queue_name(keys.DEFAULT_MODEL))
    finished, late, cancelled = (enqueue(server, LONG, Submission(ttl=1000)) for _ in range(3))
    job = fetch(server, late)
    job.meta["expires_at"] = 0.0
    job.save_meta()
    server.set(keys.cancel_flag(cancelled), 1, ex=60)
    alien = queue.enqueue_call("os.getcwd").id
    followed = fetch(server, finished)
    follower = queue.enqueue_call(keys.TASK, args=(LONG.to_payload(),), depends_on=followed).id
    server.rpush(queue.key, "missing")

    worker = start()

    wait_until(lambda: worker.done == 5)
    states = {job_id: recorded_state(fetch(server, job_id)) for job_id in (finished, late, cancelled, alien, follower)}
    assert list(states.values()) == ["finished", "failed", "cancelled", "failed", "finished"]
    assert denials(server) == []


def test_a_worker_gives_back_what_it_cannot_finish_as_the_workers_user(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker]
) -> None:
    worker = start(grace=0, slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])

    worker.stop()

    wait_until(lambda: recorded_state(fetch(server, job_id)) == "queued")
    wait_until(lambda: not server.exists(keys.worker_lease(worker.name)))
    assert denials(server) == []


def test_rqs_stop_command_reaches_a_worker_of_the_workers_user(
    server: redis.Redis, urls: Urls, start: Callable[..., Worker]
) -> None:
    worker = start(slow=True)
    job_id = enqueue(server, LONG, Submission())
    wait_until(lambda: stream_length(server, job_id)[0])

    send_stop_job_command(server, job_id)

    wait_until(lambda: worker.done)
    assert recorded_state(fetch(server, job_id)) == "cancelled"
    assert denials(server) == []


def everything_in(server: redis.Redis) -> str:
    """All keys and values, as text."""
    read: dict[Any, Callable[[Any], Any]] = {
        b"string": server.get,
        b"hash": server.hgetall,
        b"set": server.smembers,
        b"stream": server.xrange,
        b"list": lambda key: server.lrange(key, 0, -1),
        b"zset": lambda key: server.zrange(key, 0, -1),
    }
    found = [(key, read[server.type(key)](key)) for key in server.scan_iter()]
    return repr(found)


def test_no_password_is_logged_shown_or_stored(
    server: redis.Redis,
    urls: Urls,
    start: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    start()
    shown = []
    monkeypatch.setenv("MINILAB_REDIS_URL", urls[CLIENT])
    shown.append(run_client("submit", "Phileas Fogg", "--follow").output)
    shown.append(run_client("workers").output)
    server.execute_command("ACL", "SETUSER", CLIENT, "-xread")
    shown.append(run_client("submit", "Phileas Fogg", "--follow").output)
    server.execute_command("ACL", "SETUSER", CLIENT, "resetpass", ">another")
    shown.append(run_client("status", "a").output)
    with pytest.raises(RedisUnavailableError, match="refuses the login") as refused:
        connect(urls[CLIENT])
    shown.append(str(refused.value))

    everything = [*shown, caplog.text, *capsys.readouterr(), everything_in(server)]

    assert "refuses the login" in shown[3]
    assert "Redis refused" in shown[2]
    for password in PASSWORDS.values():
        for spelling in (password, quote(password, safe="")):
            assert not any(spelling in text for text in everything)


def test_a_wrong_password_ends_a_worker_in_one_error_without_it(urls: Urls, served: ServedModel) -> None:
    url = urls[WORKER].replace("secret", "wrong")

    with pytest.raises(RedisUnavailableError, match="refuses the login") as refused:
        Worker(WorkerSettings((keys.queue_name("base"),), 4, redis_url=url), served)

    assert "wrong" not in str(refused.value)
