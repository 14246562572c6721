"""The passwords of the users that docs/security.md gives: they are in no log, no message and no key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker, WorkerSettings
from support.client_program import client
from support.redis_users import CLIENT, PASSWORDS, WORKER, Urls

from minilab_gen.errors import RedisUnavailableError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect


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
    user_urls: Urls,
    start_restricted: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    start_restricted()
    shown = []
    monkeypatch.setenv("MINILAB_REDIS_URL", user_urls[CLIENT])
    shown.append(client("submit", "Phileas Fogg", "--follow").output)
    shown.append(client("workers").output)
    server.execute_command("ACL", "SETUSER", CLIENT, "-xread")
    shown.append(client("submit", "Phileas Fogg", "--follow").output)
    server.execute_command("ACL", "SETUSER", CLIENT, "resetpass", ">another")
    shown.append(client("status", "a").output)
    with pytest.raises(RedisUnavailableError, match="refuses the login") as refused:
        connect(user_urls[CLIENT])
    shown.append(str(refused.value))

    everything = [*shown, caplog.text, *capsys.readouterr(), everything_in(server)]

    assert "refuses the login" in shown[3]
    assert "Redis refused" in shown[2]
    for password in PASSWORDS.values():
        for spelling in (password, quote(password, safe="")):
            assert not any(spelling in text for text in everything)


def test_a_wrong_password_ends_a_worker_in_one_error_without_it(user_urls: Urls, served: ServedModel) -> None:
    url = user_urls[WORKER].replace("secret", "wrong")

    with pytest.raises(RedisUnavailableError, match="refuses the login") as refused:
        Worker(WorkerSettings((keys.queue_name("base"),), 4, redis_url=url), served)

    assert "wrong" not in str(refused.value)
