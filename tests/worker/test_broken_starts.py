"""Connections that break while a worker asks Redis what it must know before it serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from minilab_worker import cli, outage
from minilab_worker.outage import insist

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.text.tokenizer import BASE_CHECKPOINT


def failing(*errors: Exception) -> tuple[Callable[..., None], list[Exception]]:
    """What is asked, which fails with each of these errors once, and those that are left."""
    left = list(errors)

    def ask(*_: object) -> None:
        if left:
            raise left.pop(0)

    return ask, left


def test_what_a_broken_connection_interrupts_is_asked_again() -> None:
    ask, left = failing(redis.ConnectionError("reset"), redis.TimeoutError("late"), redis.BusyLoadingError("loads"))
    insist(ask)

    assert not left


def test_a_redis_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "REDIS_LIMIT", 0.2)
    ask, left = failing(*[redis.ConnectionError("reset")] * 100)

    with pytest.raises(RedisUnavailableError, match="given up after 0 s: reset"):
        insist(ask)
    assert left


@pytest.mark.parametrize("error", [redis.AuthenticationError("no"), redis.ResponseError("no"), ValueError("no")])
def test_what_a_second_try_would_not_change_is_raised_at_once(error: Exception) -> None:
    ask, left = failing(error, error)

    with pytest.raises(type(error)):
        insist(ask)
    assert len(left) == 1


def test_a_worker_starts_though_a_connection_breaks_between_its_checks(
    monkeypatch: pytest.MonkeyPatch, server_url: str
) -> None:
    ask, left = failing(redis.ConnectionError("reset"))
    monkeypatch.setattr(cli, "check_waiting", ask)

    cli._check_before_loading(BASE_CHECKPOINT, "base", keys.queue_names("base"), server_url)

    assert not left
