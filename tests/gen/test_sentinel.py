"""A Redis watched by Sentinels: when its master fails or steps down, work continues at the next; no token is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import redis
from chaos.fleet import Fleet
from chaos.server import BINARY, Server
from support.own_service import LONG, OwnService
from support.watched_redis import SERVICE, WatchedRedis

import minilab_gen
from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol.connection import connect
from minilab_gen.request import GenerationRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]


@pytest.fixture
def watched() -> Iterator[WatchedRedis]:
    with TemporaryDirectory(prefix="ml-") as folder, WatchedRedis(Path(folder)) as watched:
        yield watched


@pytest.fixture(scope="module")
def steady() -> Iterator[WatchedRedis]:
    """One of which nothing is ended, for several tests."""
    with TemporaryDirectory(prefix="ml-") as folder, WatchedRedis(Path(folder)) as watched:
        yield watched


@pytest.fixture
def service(watched: WatchedRedis, slow_checkpoint: Path, tmp_path: Path) -> Iterator[OwnService]:
    """A service on such a Redis, and no worker yet."""
    with Fleet(slow_checkpoint, watched.url, tmp_path) as fleet:
        service = OwnService(slow_checkpoint, cast(Server, watched), fleet)
        yield service
        service.connection.close()


def assert_jobs_go_on(watched: WatchedRedis, service: OwnService, take_away: Callable[[int], None]) -> int:
    """At the new master, when the old one, whose port is returned, is no longer."""
    worker = service.fleet.start_and_wait()
    jobs = [service.submit() for _ in range(6)]
    for job_id in jobs:
        service.wait_for_token(job_id, 10)
    watched.wait_for_replicas()
    seen = {job_id: service.stream(job_id) for job_id in jobs}
    old = watched.master

    take_away(old)
    watched.wait_for_another_master(old)
    service.connection.connection_pool.disconnect()  # it may still lead to the old one, which answers

    for job_id in jobs:
        service.wait_for_status(job_id, "finished")
        service.assert_answered(job_id, LONG)
        assert service.stream(job_id)[: len(seen[job_id])] == seen[job_id]
    assert max(len(events) for events in seen.values()) < LONG.max_new_tokens, "the jobs must last longer than that"
    assert (worker.exit_code, "Traceback" in worker.said) == (None, False)
    return old


def test_jobs_go_on_when_the_master_steps_down(watched: WatchedRedis, service: OwnService) -> None:
    assert_jobs_go_on(watched, service, lambda _: watched.fail_over())

    service.fleet.stop_all()
    service.assert_nothing_is_left()


def test_jobs_go_on_when_the_master_is_killed_which_is_not_written_to_when_it_comes_back_as_a_replica(
    watched: WatchedRedis, service: OwnService
) -> None:
    old = assert_jobs_go_on(watched, service, watched.kill)

    watched.start_node(old)
    watched.wait_for_replicas()
    job_id = service.submit(GenerationRequest((1,), 3))

    service.wait_for_status(job_id, "finished")
    service.assert_answered(job_id, GenerationRequest((1,), 3))
    with redis.Redis(port=old) as replica:
        assert replica.info("replication")["role"] == "slave"
    service.fleet.stop_all()
    service.assert_nothing_is_left()


async def test_programs_submit_and_tail_through_sentinels(
    steady: WatchedRedis, slow_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILAB_REDIS_URL", f"{steady.url}?db=0")
    with Fleet(slow_checkpoint, steady.url, tmp_path) as fleet:
        fleet.start_and_wait()

        job_id = minilab_gen.submit((5, 6, 7), max_new_tokens=20, stop_ids=())

        events = list(minilab_gen.tail(job_id))
        assert len(events) == 21
        assert [event async for event in minilab_gen.tail_async(job_id)] == events


def test_a_service_that_no_sentinel_knows_is_named(steady: WatchedRedis) -> None:
    with pytest.raises(RedisUnavailableError, match="none of 3 Sentinels knows a master of other that is up"):
        connect(steady.url.replace(SERVICE, "other"))


def test_sentinels_that_are_down_are_passed_over(watched: WatchedRedis) -> None:
    first, second, third = watched.sentinels
    watched.kill(first)
    watched.kill(second)

    with connect(watched.url) as client:
        assert client.ping()
    watched.kill(third)
    with pytest.raises(RedisUnavailableError, match="none of 3 Sentinels"):
        connect(watched.url)
