"""``minilab-gateway``: the command line that serves OpenAI's routes."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import redis

from minilab_gateway.settings import (
    BATCH_WINDOW,
    DEFAULT_BATCH_JOBS,
    DEFAULT_MAX_BODY,
    DEFAULT_MAX_FILE,
    DEFAULT_MAX_FILES_BYTES,
    GatewaySettings,
)
from minilab_gen.errors import MiniLabError, RedisUnavailableError, RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.refusals import refusal

if TYPE_CHECKING:
    import uvicorn

    from minilab_gateway.api_keys import ApiKeys

_log = logging.getLogger(__name__)

_FAILED, _BAD_USAGE, _NO_REDIS = 1, 2, 4

_REDIS_WAIT: Final = 30.0
"""Seconds that a start waits for Redis."""


@dataclass(frozen=True, slots=True)
class _Options:
    """How the process serves, beside what the app is told."""

    host: str
    port: int
    grace: float
    without_keys: bool
    with_worker: bool
    model: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "auto_envvar_prefix": "MINILAB"},
)
@click.option("--host", envvar="MINILAB_GATEWAY_HOST", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    envvar="MINILAB_GATEWAY_PORT",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--redis-url", help="URL of the Redis server.  [default: a private server of this user]")
@click.option(
    "--api-keys",
    type=click.Path(path_type=Path),
    help="File of the keys that may ask; needed unless --host is this machine's own.",
)
@click.option(
    "--queue-wait",
    type=click.FloatRange(0, 3600),
    default=30.0,
    help="Seconds that a request waits for a worker of its model where there is none.",
)
@click.option(
    "--max-queued",
    type=click.IntRange(1),
    help="Waiting jobs of a model above which requests are refused.  [default: no bound]",
)
@click.option("--max-body", type=click.IntRange(1024), default=DEFAULT_MAX_BODY, help="Bytes of a body at most.")
@click.option(
    "--max-file", type=click.IntRange(1024), default=DEFAULT_MAX_FILE, help="Bytes of an uploaded file at most."
)
@click.option(
    "--max-files-bytes",
    type=click.IntRange(1024),
    default=DEFAULT_MAX_FILES_BYTES,
    help="Bytes of all files of one key at most; where no keys are asked for, of all.",
)
@click.option(
    "--batch-jobs", type=click.IntRange(1), default=DEFAULT_BATCH_JOBS, help="Unfinished jobs of one batch at most."
)
@click.option("--batch-window", type=click.IntRange(1, BATCH_WINDOW), default=BATCH_WINDOW, hidden=True)
@click.option(
    "--timeout",
    type=click.IntRange(1, keys.LONGEST_TIME),
    default=keys.DEFAULT_TIMEOUT,
    help="Seconds that a job may run.",
)
@click.option(
    "--cors-origin", "cors_origins", multiple=True, help="Origin whose pages may ask; may be repeated.  [default: none]"
)
@click.option("--root-path", default="", help="Path under which a proxy serves this, such as /llm.")
@click.option(
    "--idempotency-header", default="Idempotency-Key", help="Header that makes a retry find the jobs of its first try."
)
@click.option(
    "--ping",
    envvar="MINILAB_GATEWAY_PING",
    type=click.FloatRange(0.01, 25),
    default=15.0,
    help="Seconds between the comments that keep proxies from cutting a silent stream.",
)
@click.option(
    "--grace",
    envvar="MINILAB_GATEWAY_GRACE",
    type=click.IntRange(0, 3600),
    default=25,
    help="Seconds in which open answers may end after SIGTERM.",
)
@click.option("--ssl-certfile", type=click.Path(exists=True, dir_okay=False), help="Certificate for HTTPS.")
@click.option("--ssl-keyfile", type=click.Path(exists=True, dir_okay=False), help="Its key.")
@click.option(
    "--without-keys", is_flag=True, help="Ask nobody for a key, where something else keeps other machines out."
)
@click.option("--with-worker", is_flag=True, help="Also start a worker, and end it with the gateway.")
@click.option(
    "--model", envvar="MINILAB_CHECKPOINT", help="Checkpoint folder for --with-worker.  [default: the base model]"
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Format of log lines.")
@click.version_option(package_name="minilab-gen", allow_from_autoenv=False, help="Show the version and exit.")
@click.pass_context
def program(context: click.Context, /, log_format: Literal["text", "json"], **options: Any) -> None:
    """Serve OpenAI's HTTP routes for the models of all workers, until SIGTERM or Ctrl-C.

    Example: minilab-gateway --with-worker

    Exit codes: 0 done, 1 failed, 2 bad usage, 4 no Redis.
    """
    if context.invoked_subcommand is not None:
        return
    from minilab_gen import log_lines

    log_lines.configure(log_format, verbose=False, quiet=False)
    own = {name: options.pop(name) for name in _Options.__slots__}  # the rest is what the app is told
    _serve(GatewaySettings(**options), _Options(**own))


@program.command()
@click.argument("name")
def key(name: str) -> None:
    """Make a new key: print it, and the line of --api-keys that lets it in.

    Behind the hash may stand: requests-per-minute=60 tokens-per-minute=20000 jobs=4 models=base,other
    """
    from minilab_gateway.api_keys import new_key

    made, line = new_key(name)
    click.echo(f"the key, which nothing keeps: {made}")
    click.echo(f"its line in the file of --api-keys: {line}")


for _parameter in program.params:
    if isinstance(_parameter, click.Option):
        _parameter.show_envvar = True  # click has no such setting for all of a command


def _serve(settings: GatewaySettings, options: _Options) -> None:
    from minilab_gateway.api_keys import ApiKeys

    if options.without_keys and settings.api_keys is not None:
        raise RequestError("--without-keys does not go with --api-keys")
    if settings.api_keys is None and not options.without_keys and not _is_loopback(options.host):
        raise RequestError(
            f"--host {options.host} can be reached from other machines: give --api-keys FILE; "
            "`minilab-gateway key NAME` makes a key (or --without-keys, where something else keeps them out)"
        )
    if options.model is not None and not options.with_worker:
        raise RequestError("--model goes with --with-worker")
    # Before there is anything to end. uvicorn catches it while it serves, and hands it on when it has ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    known = ApiKeys(settings.api_keys) if settings.api_keys is not None else None
    if known is not None:
        _reload_on_hangup(known)
    with ExitStack() as stack:
        connection = connect(settings.redis_url, wait=_REDIS_WAIT)
        worker = None
        if options.with_worker:
            from minilab_gateway.worker_beside import WorkerBeside

            worker = stack.enter_context(WorkerBeside(options.model, settings.redis_url))
        try:
            _run(settings, options, connection, known)
        finally:
            if worker is not None and worker.has_failed:
                sys.exit(_FAILED)


def _run(settings: GatewaySettings, options: _Options, connection: redis.Redis, known: ApiKeys | None) -> None:
    import uvicorn
    from sse_starlette.sse import AppStatus

    from minilab_gateway.app import make_app

    AppStatus.enable_automatic_graceful_drain = False  # open answers have the grace to end
    config = uvicorn.Config(
        make_app(settings, connection, known, lambda: server.should_exit),
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,  # each request has a line of ours
        server_header=False,
        timeout_graceful_shutdown=int(options.grace),
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[_bound(config)])
    if not server.started:
        sys.exit(_FAILED)


def _bound(config: uvicorn.Config) -> socket.socket:
    """The socket to listen on; uvicorn logs where, or why not, and would end the program with a code of its own."""
    try:
        bound = config.bind_socket()
    except SystemExit:
        sys.exit(_FAILED)
    # Connections inherit it. asyncio sets it on sockets that it binds itself; without, a token waits for the
    # acknowledgement of the one before, which takes a client 40 ms.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def _reload_on_hangup(known: ApiKeys) -> None:
    def reload(*_: object) -> None:
        try:
            known.reload()
        except RequestError as error:
            _log.error("the keys stay what they were: %s", error)
        else:
            _log.info("%d keys are known now", len(known))

    signal.signal(signal.SIGHUP, reload)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> None:
    """Run the program; each kind of error has its exit code."""
    try:
        sys.exit(program(prog_name="minilab-gateway", standalone_mode=False))
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"; see {context.command_path} --help" if context is not None else ""
        _fail(f"{error.format_message().rstrip('.')}{hint}", error.exit_code)
    except click.Abort:
        sys.exit(130)
    except MiniLabError as error:
        known = {RedisUnavailableError: _NO_REDIS, RequestError: _BAD_USAGE}
        _fail(str(error), known.get(type(error), _FAILED))
    except redis.RedisError as error:
        lost = isinstance(error, redis.ConnectionError | redis.TimeoutError)
        _fail(f"Redis was lost: {error}" if lost else "; ".join(filter(None, refusal(error))), _NO_REDIS)
    except ModuleNotFoundError as error:
        remedy = "in a clone of the repository: pip install -c constraints.txt '.[gateway]'"
        _fail(f"a gateway needs more than a client, and {error.name} is missing; {remedy}", _FAILED)


def _fail(message: str, code: int) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(code)
