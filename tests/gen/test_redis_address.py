"""The address of a Redis: a bad one is refused with the rule, and none is shown with its password."""

from __future__ import annotations

import pytest
from support.scripted_server import free_port

from minilab_gen.errors import RedisUnavailableError, RequestError
from minilab_gen.protocol.connection import connect, connect_async, masked_url

pytestmark = pytest.mark.usefixtures("one_try")

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "must begin with"),
        ("localhost:6379", "must begin with"),
        ("http://localhost", "must begin with"),
        ("redis:/localhost", "must begin with"),
        ("redis://localhost:port", "must be scheme"),
        ("redis://localhost:99999", "must be scheme"),
        ("redis://localhost:0", "port from 1"),
        ("redis://[::1", "must be scheme"),
        (f"redis://{'a' * 70}", "must be scheme"),
        ("redis://localhost/jobs", "database number"),
        ("redis://localhost?db=-1", "db as a whole number"),
        ("redis://localhost?db=1.5", "db as a whole number"),
        ("redis://localhost?socket_timeout=0.5", "socket_timeout as a number from 4"),
        ("redis://localhost?socket_timeout=nan", "socket_timeout as a number"),
        ("redis://localhost?max_connections=0", "max_connections as a whole number"),
        ("redis://localhost?decode_responses=True", "decode_responses, since RQ needs bytes"),
        ("redis://localhost?decode_responses=1", "decode_responses, since RQ needs bytes"),
        ("redis://localhost?retry=5", "not retry"),
        ("redis://localhost?ssl_cert_reqs=none", "rediss://"),
        ("rediss://localhost?ssl_cert_reqs=perhaps", "none, optional or required"),
        ("unix://relative/path", "absolute path"),
        ("unix://", "absolute path"),
        ("sentinel://host:26379", "sentinel://user:password@host:port,host:port/service"),
        ("sentinel://host:26379/", "sentinel://user:password@host:port,host:port/service"),
        ("sentinel://host,/service", "sentinel://user:password@host:port,host:port/service"),
        ("sentinel:///service", "sentinel://user:password@host:port,host:port/service"),
        ("sentinel://host/my service", "sentinel://user:password@host:port,host:port/service"),
        ("sentinel://host,other:port/service", "must be scheme"),
        ("sentinel://host,other:0/service", "port from 1"),
        ("sentinel://host,[::1]:26379,[::1/service", "must be scheme"),
        ("sentinel://host/service?db=x", "db as a whole number"),
        ("sentinel://host/service?ssl_cert_reqs=none", "rediss://"),
        ("sentinel://host/service?decode_responses=1", "decode_responses, since RQ needs bytes"),
        ("sentinel://host/service?sentinel_port=5", "not sentinel_port"),
        ("redis://host?sentinel_username=me", "not sentinel_username"),
    ],
)
def test_a_bad_url_is_refused_with_the_rule(url: str, rule: str) -> None:
    with pytest.raises(RequestError, match=rule):
        connect(url)
    with pytest.raises(RequestError, match=rule):
        connect_async(url)


@pytest.mark.parametrize("wait", [-1.0, float("nan")])
def test_a_bad_wait_is_refused(wait: float) -> None:
    with pytest.raises(RequestError, match="wait must be a number of seconds"):
        connect("redis://localhost", wait)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:PORT/0",
        f"redis://{SECRET}:{SECRET}@127.0.0.1:PORT",
        f"redis://127.0.0.1:PORT?password={SECRET}",
        f"rediss://:{SECRET}@127.0.0.1:PORT?ssl_password={SECRET}",
        f"unix:///nowhere/redis.sock?password={SECRET}",
        f"redis://:a/{SECRET}@127.0.0.1:PORT",
        f"redis://:a?{SECRET}@127.0.0.1:PORT",
        f"redis://:a#{SECRET}@127.0.0.1:PORT",
        f"redis://:12/{SECRET}@127.0.0.1:PORT",
        f"redis://:12#{SECRET}@127.0.0.1:PORT",
        f"redis://:a@{SECRET}@127.0.0.1:PORT",
        f"redis://user:{SECRET}",
        f"redis://127.0.0.1:PORT?password=a&{SECRET}=b",
        f"redis://:{SECRET}@127.0.0.1:PORT?db=x",
        f"redis://:{SECRET}@127.0.0.1:PORT?decode_responses=1",
        f"http://:{SECRET}@127.0.0.1:PORT",
        f"me:{SECRET}@127.0.0.1:PORT",
        f"redis://:{SECRET}@[::1",
        f"sentinel://:{SECRET}@127.0.0.1:PORT,127.0.0.1:PORT/service",
        f"sentinel://:{SECRET}@127.0.0.1:PORT,127.0.0.1:0/service",
        f"sentinel://:{SECRET}@127.0.0.1:PORT",
        f"sentinel://:{SECRET}/a@127.0.0.1:PORT/service",
        f"sentinel://127.0.0.1:PORT/service?sentinel_password={SECRET}",
        f"sentinel://127.0.0.1:PORT/service?sentinel_password=a&{SECRET}=b",
        f"sentinel://:{SECRET}@127.0.0.1:PORT/service?db=x",
    ],
)
def test_no_error_shows_the_password(url: str) -> None:
    with pytest.raises((RedisUnavailableError, RequestError)) as caught:
        connect(url.replace("PORT", str(free_port())))
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert "\n" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user:pass@localhost", "redis://***@localhost"),
        ("redis://localhost?password=pass", "redis://localhost?***"),
        ("redis://:a@pass@localhost", "redis://***@localhost"),
        ("redis://:a/pass@localhost", "redis://***"),
        ("redis://user:pass", "redis://***"),
        ("redis://:pass@[::1]:6379", "redis://***@[::1]:6379"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("pass@localhost", "***"),
        ("localhost", "localhost"),
        ("sentinel://a:26379,b/service", "sentinel://a:26379,b/service"),
        ("sentinel://me:pass@a,b:1/service?db=1", "sentinel://***@a,b:1/service?***"),
        ("sentinel://:a/pass@b/service", "sentinel://***"),
    ],
)
def test_a_shown_url_has_no_credentials(url: str, shown: str) -> None:
    assert masked_url(url) == shown
