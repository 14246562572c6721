"""What ``minilab-client doctor`` finds, on a server that is well and on others, and that it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis
from chaos.server import BINARY, Server
from minilab_worker.worker import Worker
from rq.job import Job
from support.client_program import announce_worker, client, diagnosis, fake_redis, run, start, submit
from support.waiting import wait_until

from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard, publish_card
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.protocol.worker_stats import WorkerStats, publish_stats
from minilab_gen.request import GenerationRequest
from minilab_gen.text.tokenizer import get_tokenizer

REPORT = WorkerStats("base", 64, 3, 0, 0.0, "exact: 9 rows of logits equal bit for bit", "f" * 16, 0.0, 0.0)
CARD = ModelCard("base", 64, 2048, (0,), "f" * 16, "exact: 9 rows", "t" * 32)

START_OTHER = "minilab-worker --model ./other --name other, where ./other is its folder"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """A fake Redis, which knows no INFO, for what is found of the service."""
    return fake_redis(monkeypatch)


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A server of the test's own, whose settings may be spoilt."""
    if BINARY is None:
        pytest.skip("needs redis-server or valkey-server on the PATH")
    with TemporaryDirectory(prefix="ml-") as folder, Server(Path(folder)) as server, server.connect() as connection:
        monkeypatch.setenv("MINILAB_REDIS_URL", server.url)
        yield connection


def finding(check: str) -> dict[str, str]:
    """The one finding of a check."""
    (found,) = diagnosis()[1][check]
    return found


def serve(connection: redis.Redis, name: str = "minilab-a", **report: Any) -> None:
    """A worker that is alive and has reported."""
    announce_worker(connection, name)
    publish_stats(connection, name, replace(REPORT, reported_at=time.time(), **report))


# the server


def test_a_service_that_is_well_has_nothing_to_be_warned_of(
    server: redis.Redis, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    wait_until(lambda: server.exists(keys.worker_stats(worker.name), keys.model_card("base")) == 2)

    code, found = diagnosis()

    checks = {"redis", "version", "persistence", "eviction", "memory", "connections", "rights", "clock"}
    assert found.keys() == checks | {"workers", "model"}
    assert {each["level"] for findings in found.values() for each in findings} == {"ok"}
    assert code == 0


def test_each_finding_is_one_line_with_its_remedy(own_server: redis.Redis) -> None:
    result = client("doctor")

    lines = {line.split()[1]: line for line in result.stdout.splitlines()}
    assert lines["version"].startswith("ok    version")
    assert lines["workers"] == "warn  workers      none is alive, so jobs wait; start one: minilab-worker"
    assert (result.exit_code, result.stderr) == (0, "")


def test_an_eviction_policy_that_drops_keys_is_a_failure_where_there_is_a_limit(own_server: redis.Redis) -> None:
    own_server.config_set("maxmemory-policy", "volatile-lru")
    assert finding("eviction")["level"] == "warn"

    own_server.config_set("maxmemory", "200mb")

    code, found = diagnosis()
    assert code == 1
    assert found["eviction"][0]["level"] == "fail"
    assert "volatile-lru" in found["eviction"][0]["found"]
    assert found["eviction"][0]["remedy"] == "set it to noeviction"


def test_memory_that_is_nearly_full_is_told(own_server: redis.Redis) -> None:
    own_server.config_set("maxmemory", "40mb")
    assert finding("memory")["level"] == "ok"

    for n in range(8):
        own_server.set(f"other{n}", b"x" * 4_000_000)

    assert finding("memory")["level"] == "warn"


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "flushed everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warn", "appendfsync no"),
        ({"appendonly": "no", "save": ""}, "warn", "nothing is written to disk"),
        ({"appendonly": "no", "save": "3600 1"}, "warn", "only snapshots"),
    ],
)
def test_what_redis_writes_to_disk_is_told(
    own_server: redis.Redis, settings: dict[str, str], level: str, words: str
) -> None:
    for name, value in settings.items():
        own_server.config_set(name, value)

    found = finding("persistence")

    assert found["level"] == level
    assert words in found["found"]


def test_a_replica_is_a_failure(own_server: redis.Redis) -> None:
    own_server.execute_command("REPLICAOF", "127.0.0.1", "1")

    code, found = diagnosis()

    assert (code, found["role"][0]["level"]) == (1, "fail")


@pytest.fixture
def restricted(own_server: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the program be a user with fewer rights."""

    def restrict(*rules: str) -> None:
        own_server.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", "+@all", *rules)
        socket = own_server.connection_pool.connection_kwargs["path"]
        monkeypatch.setenv("MINILAB_REDIS_URL", f"unix://narrow:secret@{socket}")

    return restrict


def test_what_redis_does_not_tell_is_said_to_be_unknown(restricted: Callable[..., None]) -> None:
    restricted("-info", "-config", "-time", "-acl")

    code, found = diagnosis()

    assert code == 0
    assert "INFO is not allowed" in found["server"][0]["found"]
    assert "TIME is not allowed" in found["clock"][0]["found"]
    assert not {"version", "persistence", "eviction"} & found.keys()
    assert found["rights"][0]["level"] == "ok"


def test_without_config_the_rest_of_persistence_is_told(restricted: Callable[..., None]) -> None:
    restricted("-config")

    found = finding("persistence")

    assert found["level"] == "ok"
    assert "CONFIG is not allowed" in found["found"]


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        (["-xadd"], "XADD minilab:tokens:doctor"),
        (["-rpush", "-set"], "SET minilab:cancel:doctor, RPUSH rq:queue:minilab.base"),
        (["resetkeys", "~rq:*"], "GET minilab:model:base"),
        (["-multi"], "MULTI"),
    ],
)
def test_a_right_that_a_client_lacks_is_a_failure_that_names_it(
    restricted: Callable[..., None], own_server: redis.Redis, rules: list[str], missing: str
) -> None:
    restricted(*rules)

    code, found = diagnosis()

    assert code == 1
    assert missing in found["rights"][0]["found"]
    assert own_server.keys() == []


def test_a_service_that_redis_hides_is_a_warning(restricted: Callable[..., None]) -> None:
    restricted("-smembers")

    code, found = diagnosis()

    assert (code, found["service"][0]["level"]) == (1, "warn")
    assert "SMEMBERS" in found["rights"][0]["found"]


def test_without_a_redis_there_is_one_line_and_its_exit_code() -> None:
    result = client("doctor", "--redis-url", "unix:///nowhere/redis.sock")

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)


def test_nothing_is_changed_and_little_is_asked_however_many_jobs_there_are(server: redis.Redis) -> None:
    run(server, "x", ["a", "b"])
    submit(server, "y")
    server.rpush("rq:queue:minilab.base", *(f"j{n}" for n in range(20_000)))
    server.zadd("rq:wip:minilab.base", {f"j{n}:1": n for n in range(20_000)})
    before = everything_in(server)
    server.config_resetstat()

    diagnosis()

    stats: dict[str, Any] = server.info("commandstats")
    assert sum(each["calls"] for each in stats.values()) < 2000
    assert "cmdstat_scan" not in stats
    assert everything_in(server) == before


def everything_in(server: redis.Redis) -> dict[bytes, tuple[Any, bool]]:
    """All values as Redis serialises them, and whether they expire."""
    return {key: (server.dump(key), server.ttl(key) > 0) for key in sorted(server.scan_iter())}


def test_the_address_is_shown_without_its_password(own_server: redis.Redis) -> None:
    socket = own_server.connection_pool.connection_kwargs["path"]
    own_server.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all")

    result = client("doctor", MINILAB_REDIS_URL=f"unix://narrow:secret@{socket}")

    assert f"unix://***@{socket} answers" in result.stdout
    assert "secret" not in result.stdout


# the service


def test_jobs_that_no_worker_serves_are_reported(fake: redis.Redis) -> None:
    serve(fake)
    submit(fake, "x")
    enqueue(fake, GenerationRequest((5,)), Submission("other", "y", "high"))

    code, found = diagnosis()

    assert code == 0
    served, unserved = found["queue"]
    assert (served["level"], unserved["level"]) == ("ok", "warn")
    assert served["found"].startswith("minilab.base: 1 wait")
    assert unserved["found"].startswith("minilab.other.high: 1 wait")
    assert unserved["remedy"] == f"start a worker: {START_OTHER}"


def test_what_to_start_is_a_worker_of_the_model_that_is_asked(fake: redis.Redis) -> None:
    enqueue(fake, GenerationRequest((5,)), Submission("other", "x"))
    start(fake, "x")
    fake.zadd("rq:wip:minilab.other", {"x:1": time.time() + 60})
    fetch(fake, "x").save()
    fake.hset(Job.key_for("x"), "worker_name", "minilab-gone")
    enqueue(fake, GenerationRequest((5,)), Submission("other", "y"))

    found = diagnosis()[1]

    assert found["workers"][0]["remedy"] == f"start one: {START_OTHER}"
    assert found["stuck"][0]["remedy"] == f"start a worker, which goes on with them: {START_OTHER}"
    assert found["model"][0]["remedy"] == f"start one of its workers: {START_OTHER}"


def test_a_job_made_for_another_vocabulary_is_told_with_what_to_cancel(fake: redis.Redis) -> None:
    serve(fake)
    submit(fake, "x")
    assert len(diagnosis()[1]["queue"]) == 1

    enqueue(fake, GenerationRequest((5, 2048)), Submission(job_id="y"))

    _, seen = diagnosis()[1]["queue"]
    assert (seen["level"], seen["remedy"]) == ("warn", "cancel what would fail: minilab-client cancel y")
    assert seen["found"] == "minilab.base: 1 made for another model, with ids beyond the 2048 of this one"
    assert client(*seen["remedy"].partition("minilab-client ")[2].split()).exit_code == 0
    assert len(diagnosis()[1]["queue"]) == 1


def test_a_model_whose_card_has_expired_is_told(fake: redis.Redis) -> None:
    enqueue(fake, GenerationRequest((5,)), Submission("other", "x"))

    found = finding("model")

    assert (found["level"], "its card has expired" in found["found"]) == ("warn", True)


def test_a_card_that_cannot_be_read_is_a_failure(fake: redis.Redis) -> None:
    serve(fake)
    fake.set(keys.model_card("base"), "{}")

    code, found = diagnosis()

    assert (code, found["model"][0]["level"]) == (1, "fail")


def test_workers_of_one_model_with_unequal_fingerprints_are_a_failure(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake)
    serve(fake, "minilab-b")
    assert finding("model")["level"] == "ok"

    serve(fake, "minilab-c", fingerprint="e" * 16)

    code, found = diagnosis()
    assert (code, found["model"][0]["level"]) == (1, "fail")
    assert f"{'e' * 16}: minilab-c; {'f' * 16}: minilab-a, minilab-b" in found["model"][0]["found"]


def test_a_dead_workers_fingerprint_does_not_matter(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake)
    serve(fake, "minilab-b", fingerprint="e" * 16)
    fake.delete(keys.worker_lease("minilab-b"))

    code, found = diagnosis()

    assert (code, found["model"][0]["level"]) == (0, "ok")
    assert "minilab-b" in found["workers"][1]["found"]


def test_a_card_of_another_checkpoint_than_the_worker_serves_is_told(fake: redis.Redis) -> None:
    publish_card(fake, CARD, get_tokenizer().to_json())
    serve(fake, fingerprint="e" * 16)

    found = finding("model")

    assert (found["level"], "e" * 16 in found["found"]) == ("warn", True)


def test_a_worker_that_is_not_exact_is_told(fake: redis.Redis) -> None:
    serve(fake, exactness="not exact: 3 of 9 rows of logits differ, by at most 1.0e-05")

    found = finding("exactness")

    assert (found["level"], "minilab-a is not exact" in found["found"]) == ("warn", True)


def test_slots_of_all_workers_are_counted(fake: redis.Redis) -> None:
    serve(fake)
    serve(fake, "minilab-b", used=4)

    assert finding("workers")["found"] == "2 alive, 7 of 128 slots in use"


def test_jobs_of_a_worker_that_is_gone_are_told(fake: redis.Redis) -> None:
    for job_id in ("x", "y"):
        submit(fake, job_id)
        start(fake, job_id)
        job = fetch(fake, job_id)
        fake.hset(Job.key_for(job_id), "worker_name", "minilab-gone" if job_id == "x" else "minilab-a")
        fake.zadd(f"rq:wip:{job.origin}", {f"{job_id}:1": time.time() + 100})
    fake.rpush("rq:queue:minilab.base:intermediate", "z")
    assert finding("stuck")["found"] == "minilab.base: 3 begun by workers that are gone"

    serve(fake)

    found = finding("stuck")
    assert found["found"] == "minilab.base: 1 begun by workers that are gone"
    assert found["remedy"].startswith("none")
