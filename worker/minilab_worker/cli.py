"""``minilab-worker``: the command line that serves a checkpoint."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
import redis

from minilab_gen import log_lines as logs
from minilab_gen.errors import CheckpointError, MiniLabError, RedisUnavailableError, RequestError
from minilab_gen.log_lines import LogFormat
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import digest
from minilab_gen.protocol.connection import connect
from minilab_gen.protocol.refusals import refusal
from minilab_gen.text.tokenizer import BASE_CHECKPOINT
from minilab_worker.demo import demo
from minilab_worker.extra import check_extra
from minilab_worker.hub import checkpoint_folder
from minilab_worker.model_names import check_announced_model, check_tokenizer, check_waiting, default_name
from minilab_worker.outage import REDIS_LIMIT, insist, wait_for_writes
from minilab_worker.redis_command import redis_group
from minilab_worker.stdin_watch import end_with_stdin
from minilab_worker.telemetry.health import health, lease_file_option, write_name

if TYPE_CHECKING:
    from minilab_worker.worker import Worker

_log = logging.getLogger(__name__)

_FAILED, _BAD_USAGE, _NO_REDIS = 1, 2, 4


@dataclass(frozen=True, slots=True)
class _Options:
    """What is asked of a worker: the options of the program, but for those of its log lines."""

    model: Path
    name: str | None
    max_batch: int
    kv_tokens: int | None
    dtype: Literal["float32", "bfloat16", "int8"]
    queues: tuple[str, ...]
    redis_url: str | None
    burst: bool
    threads: int | None
    lease: int
    grace: float
    metrics_port: int | None
    metrics_host: str
    lease_file: Path | None
    log_text: bool


_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "auto_envvar_prefix": "MINILAB",
}


@click.group(invoke_without_command=True, context_settings=_CONTEXT)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    default=BASE_CHECKPOINT,
    envvar="MINILAB_CHECKPOINT",  # MINILAB_MODEL is the name that clients ask for
    help="Checkpoint folder or GGUF file to serve, or a model on the Hugging Face Hub, owner/name.",
)
@click.option("--name", help="Name of the model for clients.  [default: the folder's or file's name]")
@click.option(
    "--max-batch", type=click.IntRange(1, 1024), default=64, help="Maximum number of jobs that run at a time (slots)."
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(1),
    help="Maximum number of tokens in the KV cache, of all jobs.  [default: what half of the free memory holds]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    help="Data type of the weights; int8 is made at load.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    help="Queue to serve; may be repeated, in order of priority.  [default: the model's own]",
)
@click.option("--redis-url", help="URL of the Redis server.  [default: a private server of this user]")
@click.option("--burst", is_flag=True, help="Exit when the queues are empty.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Number of compute threads.  [default: found by a trial at start]"
)
@click.option(
    "--lease", type=click.IntRange(3, 3600), default=15, help="Seconds without renewal after which the lease expires."
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86400),
    default=25.0,
    help="Seconds in which running jobs may finish after SIGTERM.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port for Prometheus metrics; 0 picks a free one.  [default: no metrics]",
)
@click.option("--metrics-host", default="127.0.0.1", help="Address to serve metrics on.")
@lease_file_option()
@click.option("--log-format", type=click.Choice(get_args(LogFormat)), default="text", help="Format of log lines.")
@click.option("--log-text", is_flag=True, help="Log the text of each answer.")
@click.option("--end-with-stdin", is_flag=True, hidden=True, help="End when standard input does, as with SIGTERM.")
@click.option("--verbose", "-v", is_flag=True, help="Log each job.")
@click.option("--quiet", "-q", is_flag=True, help="Log warnings and errors only.")
@click.version_option(
    package_name="minilab-gen",
    allow_from_autoenv=False,  # MINILAB_VERSION may mean something else
    help="Show the version and exit.",
)
@click.pass_context
def program(context: click.Context, /, log_format: LogFormat, verbose: bool, quiet: bool, **options: Any) -> None:
    """Serve a model: run jobs from its queues, many at a time, until SIGTERM or Ctrl-C.

    Example: minilab-worker --max-batch 32

    Exit codes: 0 done, 1 failed, 2 bad usage or a folder that cannot be served, 4 no Redis.
    """
    if context.invoked_subcommand is not None:
        return
    logs.configure(log_format, verbose=verbose, quiet=quiet)
    # Before there is anything to finish. Process 1 of a container gets no SIGTERM for which it has not asked.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.pop("end_with_stdin"):
        end_with_stdin()
    _load_and_serve(_Options(**options))


def _load_and_serve(options: _Options) -> None:
    model = checkpoint_folder(options.model)
    name = keys.check_model_name(options.name or default_name(model))
    queues = options.queues or tuple(keys.queue_names(name))
    write_name(options.lease_file, "")  # a health check must not find a predecessor, whose lease may outlive it
    with ExitStack() as stack:
        server = None
        if options.metrics_port is not None:
            from minilab_worker.telemetry.metrics_server import MetricsServer  # prometheus-client, which few ask for

            server = stack.enter_context(closing(MetricsServer(options.metrics_host, options.metrics_port)))
        _check_before_loading(model, name, queues, options.redis_url)
        _log.info("%s: loading it", model)
        # numpy and the kernels, which `minilab-worker redis` can do without
        from minilab_worker.serving import load_served_model
        from minilab_worker.worker import Worker, WorkerSettings

        batch, dtype, kv_tokens = options.max_batch, options.dtype, options.kv_tokens
        served = load_served_model(model, name, batch, options.threads, dtype=dtype, kv_tokens=kv_tokens)
        _log.info("%s, announced as %s: %s (%.1f s)", model, name, served.card.exactness, served.seconds)
        _log.info("room for the keys and values of %d tokens, %s", served.kv_tokens, dtype)
        _insist(options.redis_url, lambda connection: check_announced_model(connection, served.card))
        settings = WorkerSettings(
            queues,
            batch,
            options.redis_url,
            burst=options.burst,
            lease=options.lease,
            grace=options.grace,
            log_text=options.log_text,
        )
        worker = Worker(settings, served)
        write_name(options.lease_file, worker.name)
        if server is not None:
            from minilab_worker.telemetry.metrics import WorkerMetrics

            server.show(stack.enter_context(closing(WorkerMetrics(worker, settings, served.card))))
            _log.info("metrics at %s", server.url)
        _serve(worker)


def _check_before_loading(model: Path, name: str, queues: Sequence[str], redis_url: str | None) -> None:
    """Say at once what is wrong with the folder or with Redis, since to load and check a model takes long."""
    check_extra()
    from minilab_gen.models.source import checkpoint_of  # safetensors, which `minilab-worker redis` can do without

    tokenizer = checkpoint_of(model).check()

    def ask(connection: redis.Redis) -> None:
        wait_for_writes(connection)
        check_tokenizer(connection, name, digest(tokenizer.to_json()))
        check_waiting(connection, queues, tokenizer)

    _insist(redis_url, ask)


def _insist(redis_url: str | None, ask: Callable[[redis.Redis], None]) -> None:
    """Ask something of a Redis that may not be there yet, and may go away meanwhile."""

    def connect_and_ask() -> None:
        with closing(connect(redis_url, wait=REDIS_LIMIT)) as connection:
            ask(connection)

    insist(connect_and_ask)


program.add_command(demo)
program.add_command(redis_group)
program.add_command(health)
for _parameter in program.params:
    if isinstance(_parameter, click.Option):
        _parameter.show_envvar = True  # click has no such setting for all of a command


def _serve(worker: Worker) -> None:
    worker.stop_on_signals()
    gc.freeze()  # what is loaded stays; to search it for garbage at the end takes half a second of a core
    try:
        worker.serve()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # Python puts back what would end it with another exit code
            signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Run the program; each kind of error has its exit code."""
    try:
        sys.exit(program(prog_name="minilab-worker", standalone_mode=False))  # what a command gave to `ctx.exit`
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"; see {context.command_path} --help" if context is not None else ""
        logs.say_error(f"{error.format_message().rstrip('.')}{hint}")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except MiniLabError as error:
        logs.say_error(str(error))
        known = {RedisUnavailableError: _NO_REDIS, RequestError: _BAD_USAGE, CheckpointError: _BAD_USAGE}
        sys.exit(known.get(type(error), _FAILED))
    except redis.RedisError as error:
        lost = isinstance(error, redis.ConnectionError | redis.TimeoutError)
        logs.say_error(f"Redis was lost: {error}" if lost else "; ".join(filter(None, refusal(error))))
        sys.exit(_NO_REDIS)
    except ModuleNotFoundError as error:
        logs.say_error(
            f"a worker needs more than a client, and {error.name} is missing; in a clone of the repository: "
            "pip install -c constraints.txt '.[serve]'"
        )
        sys.exit(_FAILED)
    except Exception:  # noqa: BLE001 - it ends the program all the same, with a line of the log as everything else
        _log.critical("the worker failed", exc_info=True)
        sys.exit(_FAILED)


if __name__ == "__main__":
    main()
