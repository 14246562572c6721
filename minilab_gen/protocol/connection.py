"""The one module that makes Redis connections, with their timeouts and why.

Every connection speaks bytes, because RQ stores compressed data that no encoding can decode, and protocol 2, because
one shape of answer is enough to read. Without an address it leads to the private server of ``embedded.py``.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, RedisError
from redis.retry import Retry

from minilab_gen.errors import RedisUnavailableError, RequestError
from minilab_gen.protocol import sentinel
from minilab_gen.protocol.address import redis_url
from minilab_gen.protocol.outage import Outage
from minilab_gen.protocol.refusals import refuses_writes

logger = logging.getLogger(__name__)

BLOCK_MS = 2_000
"""Milliseconds that one blocking read may ask the server to wait: short enough that a reader soon notices a cancel."""

SOCKET_SECONDS = 10.0
"""Seconds without an answer after which a connection counts as lost: five times what a blocking read waits on purpose.
redis-py's own 5 would leave a busy server three seconds."""

CONNECT_SECONDS = 5.0
"""Seconds to reach a server: two repeats of a lost TCP packet (after 1 and 3 s) fit, a wrong address is soon clear."""

RETRIES = 3
"""Times that a command is sent again after its connection broke. This bridges a proxy's restart: about a second, or
three in mid-command, where each repeat connects with repeats of its own. More would hide an outage from callers that
have better to do than wait, and a repeat of a command whose answer was lost runs it twice: harmless for stream entries,
whose ids are explicit, not for everything. redis-py does ten."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
"""The back-off between attempts doubles from the first to the longest: polite to the server, quick for the user."""

LOADING_SECONDS = 30.0
"""Seconds that a server may go on answering LOADING. It is well and reads its data back, at about 100 MB a second."""

_SETTINGS: dict[str, Any] = {
    "decode_responses": False,
    "protocol": 2,
    "legacy_responses": True,
    "socket_timeout": SOCKET_SECONDS,
    "socket_connect_timeout": CONNECT_SECONDS,
}
_RETRIED = (redis.ConnectionError,)
"""Not timeouts: after ten silent seconds three more tries would make forty, with the command perhaps run each time."""

_OVERRULED = ("protocol", "legacy_responses", "decode_responses")
"""Options that a URL shared with other programs may hold, and that change nothing here."""

_URL_OPTIONS = frozenset(
    {
        *("db", "username", "password", "client_name"),
        *("socket_timeout", "socket_connect_timeout", "health_check_interval", "max_connections"),
        *("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname"),
        *("ssl_ciphers", "ssl_keyfile", "ssl_password"),
    }
)
"""Options of a URL that are passed on to redis-py. A list, since redis-py takes any name, from ``retry`` to a typing
error, and fails at the first command with a TypeError."""

_SCHEMES = ("redis", "rediss", "unix")
_FALSE = ("0", "f", "false", "n", "no", "")


def connect(url: str | None = None, wait: float = 0.0) -> redis.Redis:
    """A connection that has answered a PING. The caller closes it. The server may refuse writes: see ``refusals.py``.

    Without a URL it goes to ``MINILAB_REDIS_URL``, else to the private server, which it starts. For ``wait`` seconds a
    server that cannot be reached is asked again. Raises RedisUnavailableError, or RequestError for a bad URL.
    """
    address = _address(url)
    contact = _FirstContact(address, wait)
    make = sentinel.client if _is_sentinel(address) else redis.Redis.from_url
    client = make(address, retry=Retry(_back_off(), RETRIES, _RETRIED), **_SETTINGS)
    try:
        _greet(client, contact)
    except BaseException:
        client.close()
        raise
    return client


def connect_async(url: str | None = None) -> redis.asyncio.Redis:
    """A connection for asyncio to the same server with the same settings. The caller awaits ``aclose()``.

    It has not been used yet: whether the server answers shows at the first command, as a ``redis.ConnectionError``.
    """
    address = _address(url)
    make = sentinel.async_client if _is_sentinel(address) else redis.asyncio.Redis.from_url
    return make(address, retry=AsyncRetry(_back_off(), RETRIES, _RETRIED), **_SETTINGS)


def checked_answers(answers: list[Any]) -> list[Any]:
    """The answers of a pipeline; what Redis says against one key is left among them, anything else is raised."""
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return answers


def masked_url(url: str) -> str:
    """The URL as it may be shown: without user, password and options. What cannot be taken apart is not shown."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url else url
    user, at, _ = rest.rpartition("@")
    if any(mark in user for mark in "/?#"):  # a password with such a character is read as a host, port or path
        return f"{scheme}://***"
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(",") if scheme == sentinel.SCHEME else [parts.netloc]:
            _ = urlsplit(f"//{host}").port
    except ValueError:
        return f"{scheme}://***"
    if parts.scheme != scheme.lower():  # a scheme with a typing error leaves everything in the path
        return "***"
    shown = parts.netloc.rpartition("@")[2] + parts.path
    return f"{scheme}://{'***@' if at else ''}{shown}{'?***' if parts.query else ''}"


def _address(url: str | None) -> str:
    given = redis_url() if url is None else url
    if given is not None:
        return _checked_url(given)
    if sys.platform == "win32":
        raise RedisUnavailableError("there is no private Redis on Windows: set MINILAB_REDIS_URL to the address of one")
    # Not at the top: a machine without fcntl and unix sockets still reaches a server by its URL.
    from minilab_gen.protocol import embedded

    return embedded.start().url


def _checked_url(url: str) -> str:
    """The URL without the options that are set here. Raises RequestError, unchained: redis-py quotes from passwords."""
    if _is_sentinel(url):
        _check_sentinels(url)
        allowed = _URL_OPTIONS | sentinel.OWN_OPTIONS
    else:
        _split(url)
        allowed = _URL_OPTIONS
    given = dict(parse_qsl(url.partition("#")[0].partition("?")[2]))
    if given.get("decode_responses", "").lower() not in _FALSE:
        raise _refusal(url, "must not ask for decode_responses, since RQ needs bytes")
    options = {name: value for name, value in given.items() if name not in _OVERRULED}
    if unknown := sorted(options.keys() - allowed):
        # A password option with an & in it falls apart, and its rest looks like the name of another.
        came = "others" if any("password" in name for name in given) else ", ".join(unknown)
        raise _refusal(url, f"may hold the options {', '.join(sorted(allowed))}, not {came}")
    if not url.startswith("rediss://") and any(name.startswith("ssl_") for name in options):
        raise _refusal(url, "with ssl options must begin with rediss://")
    if "ssl_cert_reqs" in options:
        options["ssl_cert_reqs"] = _certificate_rule(url, options["ssl_cert_reqs"])
    _check_numbers(url, options)
    return url.partition("?")[0].partition("#")[0] + (f"?{urlencode(options)}" if options else "")


def _is_sentinel(url: str) -> bool:
    return url.startswith(f"{sentinel.SCHEME}://")


def _check_sentinels(url: str) -> None:
    address = sentinel.SentinelAddress.of(url)
    if address is None:
        raise _refusal(url, "of Sentinels must be sentinel://user:password@host:port,host:port/service?db=0")
    for node in address.nodes:
        _split(node)


def _split(url: str) -> SplitResult:
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES or "://" not in url:
        raise _refusal(url, "must begin with redis://, rediss://, unix:// or sentinel://")
    try:
        parts = urlsplit(url)
        port, _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        raise _refusal(url, "must be scheme://user:password@host:port/db with a %-encoded password") from None
    if scheme == "unix":
        if parts.hostname or not parts.path.startswith("/"):
            raise _refusal(url, "must give an absolute path after unix://")
        return parts
    if "@" in parts.path + parts.query + parts.fragment:
        raise _refusal(url, "must have every @, /, ? and # of a password or option %-encoded")
    if port == 0:
        raise _refusal(url, "must have a port from 1 to 65535")
    database = parts.path.removeprefix("/")
    if database and not (database.isascii() and database.isdigit()):  # redis-py would quietly take database 0
        raise _refusal(url, "must have a database number as its path")
    return parts


def _certificate_rule(url: str, value: str) -> str:
    """none, optional or required, also when spelt as Python's None or ssl's CERT_NONE, as other programs have it."""
    rule = value.lower().removeprefix("cert_")
    if rule not in ("none", "optional", "required"):
        raise _refusal(url, f"must have ssl_cert_reqs none, optional or required, not {value!r}")
    return rule


def _check_numbers(url: str, options: dict[str, str]) -> None:
    least = {
        "db": 0,
        "max_connections": 1,
        "health_check_interval": 0,
        "socket_timeout": 2 * BLOCK_MS / 1000,  # or every quiet blocking read would count as a lost connection
        "socket_connect_timeout": 0.1,
    }
    for name, lowest in least.items():
        if name not in options:
            continue
        kind = float if name.endswith("timeout") else int
        try:
            allowed = lowest <= kind(options[name]) <= 1_000_000  # a NaN is outside, too
        except ValueError:
            allowed = False
        if not allowed:
            number = "a number" if kind is float else "a whole number"
            raise _refusal(url, f"must have {name} as {number} from {lowest:g} to 1000000, not {options[name]!r}")


def _refusal(url: str, rule: str) -> RequestError:
    return RequestError(f"a Redis URL {rule}; got {masked_url(url)!r}")


class _FirstContact:
    """How long one call keeps asking a server that does not answer yet, and what it says in the end."""

    def __init__(self, url: str, wait: float) -> None:
        if not wait >= 0:
            raise RequestError(f"wait must be a number of seconds, at least 0, got {wait}")
        self._shown = masked_url(url)
        self._outage = Outage(wait, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def pause_after(self, error: RedisError) -> float:
        """Seconds until the next attempt. Raises RedisUnavailableError when none would help or time is up."""
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            raise RedisUnavailableError(
                f"Redis at {self._shown} refuses the login: {reason}; correct user and password in the URL"
            ) from error
        if not isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
            raise RedisUnavailableError(f"Redis at {self._shown} does not serve us: {reason}; check its URL") from error
        begins, limit = self._outage.failed(), self._outage.limit
        if isinstance(error, BusyLoadingError):
            limit = max(limit, LOADING_SECONDS)
        left = limit - self._outage.seconds
        if left <= 0:
            raise RedisUnavailableError(
                f"no Redis answers at {self._shown}: {reason}; start that server, or set MINILAB_REDIS_URL to another "
                "(unset, a private one is started)"
            ) from error
        if begins:
            logger.warning("waiting up to %.0f s for Redis at %s: %s", limit, self._shown, reason)
        return min(self._outage.next_pause(), left)

    def check_mode(self, about: object) -> None:
        """Raise RedisUnavailableError for a kind of server that is not supported, as its answer to HELLO tells."""
        fields = about if isinstance(about, list) else []  # old servers and some proxies do not know the command
        mode = dict(zip(fields[::2], fields[1::2], strict=False)).get(b"mode")
        if mode == b"cluster":
            raise RedisUnavailableError(
                f"Redis Cluster is not supported, and {self._shown} is one; set MINILAB_REDIS_URL to a single Redis or "
                "Valkey, or to one behind Sentinels (unset, a private one is started)"
            )
        if mode == b"sentinel":
            raise RedisUnavailableError(
                f"{self._shown} is a Sentinel and keeps no data: set MINILAB_REDIS_URL to "
                "sentinel://host:port/service, with its host and port and the service's name"
            )


def _greet(client: redis.Redis, contact: _FirstContact) -> None:
    while True:
        try:
            pong, about = _ping_and_hello(client)
            if isinstance(pong, RedisError) and not refuses_writes(pong):  # it refuses a PING, too, and can be read
                raise pong
        except RedisError as error:
            pause = contact.pause_after(error)
        else:
            contact.check_mode(about)
            return
        time.sleep(pause)


def _ping_and_hello(client: redis.Redis) -> list[Any]:
    """Both in one round trip: a server that still loads refuses the first, and the second tells what kind it is."""
    with client.pipeline(transaction=False) as pipeline:
        pipeline.ping()
        pipeline.execute_command("HELLO")
        return pipeline.execute(raise_on_error=False)


def _back_off() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(cap=LONGEST_PAUSE_SECONDS, base=FIRST_PAUSE_SECONDS)
