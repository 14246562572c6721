"""The program ``minilab-client``: its commands and what they share."""

from __future__ import annotations

import io
import sys
from itertools import pairwise
from typing import Any, Final

import click

from minilab_client.exit_codes import exit_codes
from minilab_client.lazy_group import LazyCommand, LazyGroup
from minilab_client.output import report_errors_as_json
from minilab_client.settings import redis_url_option
from minilab_gen.version import VERSION

_COMMANDS: Final = {
    "submit": LazyCommand("minilab_client.submit", "submit", "Put one job into the queue."),
    "chat": LazyCommand("minilab_client.chat", "chat", "Talk with a model in the terminal."),
    "tail": LazyCommand("minilab_client.tail", "tail", "Print the tokens of a job as they come."),
    "batch": LazyCommand("minilab_client.batch.command", "batch", "Answer a file of requests."),
    "status": LazyCommand("minilab_client.status", "status", "Show where a job stands."),
    "result": LazyCommand("minilab_client.result", "result", "Print the answer of a job that has ended."),
    "cancel": LazyCommand("minilab_client.cancel", "cancel", "Ask that jobs stop."),
    "retry": LazyCommand("minilab_client.retry", "retry", "Submit ended jobs again."),
    "verify": LazyCommand("minilab_client.verify", "verify", "Have ended jobs computed again and compare."),
    "jobs": LazyCommand("minilab_client.jobs", "jobs", "List the jobs, newest first."),
    "models": LazyCommand("minilab_client.models", "models", "List the models that can be asked."),
    "workers": LazyCommand("minilab_client.workers", "workers", "List the workers and how busy they are."),
    "watch": LazyCommand("minilab_client.watch", "watch", "Watch queues, workers and jobs."),
    "doctor": LazyCommand("minilab_client.doctor", "doctor", "Check Redis, queues, workers and models."),
    "completion": LazyCommand("minilab_client.completion", "completion", "Print what completes commands in a shell."),
}


class _Program(LazyGroup):
    """A group whose commands return their exit code, and whose errors are one line each."""

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **settings: Any) -> click.Context:
        as_json = _asks_for_json(args)
        with exit_codes(as_json=as_json):
            context = super().make_context(info_name, args, *others, **settings)
        if as_json:
            report_errors_as_json(context)
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with exit_codes():
            code = super().invoke(ctx)
        ctx.exit(code or 0)


def _asks_for_json(words: list[str]) -> bool:
    """Whether a command line asks for JSON, seen before it is parsed, as that may be what fails."""
    options = words[: words.index("--")] if "--" in words else words
    pairs = pairwise(options)
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairs


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"minilab-client {VERSION}")
        ctx.exit()


@click.group(
    cls=_Program,
    lazy_commands=_COMMANDS,
    epilog='\b\nExample:\n  minilab-client submit "Phileas Fogg" --follow',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@redis_url_option
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Submit text-generation jobs, read their tokens as they come, look at them, cancel them.

    Without MINILAB_REDIS_URL the client and the worker share a private Redis, which starts by itself.

    Exit codes: 0 done, 1 the job failed, 2 bad usage or a request that can never run, 3 unknown or expired job, 4 no
    Redis, 5 cancelled, 124 not ended within --wait. An error is one line on stderr; where a command is given --json,
    one JSON object: {"error": {"type": ..., "message": ...}}.
    """
    if sys.__stdout__ is None:
        raise click.UsageError("the standard output must be open")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the letter é shows ?, not a traceback
