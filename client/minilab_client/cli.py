"""The program ``minilab-client``: its commands and what they share. It must not know what any of them does."""

from __future__ import annotations

import io
import sys
from importlib import metadata
from typing import Any

import click

from minilab_client.batch.command import batch
from minilab_client.cancel import cancel
from minilab_client.completion import completion
from minilab_client.doctor import doctor
from minilab_client.exit_codes import exit_codes
from minilab_client.jobs import jobs
from minilab_client.models import models
from minilab_client.result import result
from minilab_client.retry import retry
from minilab_client.settings import redis_url_option
from minilab_client.status import status
from minilab_client.submit import submit
from minilab_client.tail import tail
from minilab_client.verify import verify
from minilab_client.watch import watch
from minilab_client.workers import workers


class _Program(click.Group):
    """A group whose commands return their exit code, and whose errors are one line each."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with exit_codes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with exit_codes():
            code = super().invoke(ctx)
        ctx.exit(code or 0)


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        try:
            click.echo(f"minilab-client {metadata.version('minilab-gen')}")
        except metadata.PackageNotFoundError:
            click.echo("minilab-client of a source folder that is not installed")
        ctx.exit()


@click.group(
    cls=_Program,
    epilog='\b\nExample:\n  minilab-client submit "Phileas Fogg" --follow',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@redis_url_option
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show it.")
def main() -> None:
    """Submit text-generation jobs, read their tokens as they come, look at them, cancel them.

    Without MINILAB_REDIS_URL the client and the worker share a private Redis, which starts by itself.

    Exit codes: 0 done, 1 the job failed, 2 bad usage or a request that can never run, 3 unknown or expired job, 4 no
    Redis, 5 cancelled.
    """
    if sys.__stdout__ is None:
        raise click.UsageError("the standard output must be open")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the letter é shows ?, not a traceback


_COMMANDS = (
    *(submit, tail, batch, status, result, cancel, retry, verify),
    *(jobs, models, workers, watch, doctor, completion),
)
for _command in _COMMANDS:
    main.add_command(_command)
