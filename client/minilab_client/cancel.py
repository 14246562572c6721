"""``minilab-client cancel``: ask that jobs stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.completion import complete_models
from minilab_client.exit_codes import ExitCode, report
from minilab_client.interrupts import uninterrupted
from minilab_client.output import say, write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.errors import UnknownJobError
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import JobState

if TYPE_CHECKING:
    import redis


@click.command(
    epilog="\b\nExamples:\n  minilab-client cancel 4f2a 9c01\n  minilab-client cancel --all-queued --model base --yes",
)
@click.argument("ids", metavar="[JOB]...", type=parameters.job_id, nargs=-1)
@click.option("--all-queued", is_flag=True, help="Cancel all that wait for --model, after a question.")
@click.option(
    "--model",
    shell_complete=complete_models,
    type=parameters.model_name,
    default=keys.DEFAULT_MODEL,
    metavar="NAME",
    show_default=True,
    envvar="MINILAB_MODEL",
    show_envvar=True,
    help="The model that --all-queued is about.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each job, or one with the number.")
@redis_url_option
@pass_settings
def cancel(
    settings: ClientSettings, ids: tuple[str, ...], all_queued: bool, model: str, yes: bool, as_json: bool
) -> ExitCode:
    """Ask that each JOB stop: at once while it waits, within two tokens while it runs.

    The tokens that it has stay readable. A job that has ended stays as it is, which is no error. Of a group, all jobs
    are stopped.
    """
    from minilab_gen.protocol.groups import jobs_named

    if bool(ids) == all_queued:
        raise click.UsageError("give either JOB... or --all-queued")
    if all_queued and not yes and not sys.stdin.isatty():
        raise click.UsageError("--all-queued asks first; give --yes where there is no terminal")
    with settings.connect() as connection:
        if all_queued:
            return _cancel_all(connection, model, yes, as_json)
        code = ExitCode.DONE
        for job_id in (job_id for name in ids for job_id in jobs_named(connection, name)):
            try:
                _cancel(connection, job_id, as_json)
            except UnknownJobError as error:  # the others are stopped all the same
                code = report(error)
    return code


def _cancel(connection: redis.Redis, job_id: str, as_json: bool) -> None:
    from minilab_gen.protocol import endings, jobs

    before = endings.cancel(connection, job_id)
    now = jobs.state_of(connection, jobs.fetch(connection, job_id))
    if as_json:
        write_json({"job_id": job_id, "was": before, "state": now})
    else:
        write(f"{job_id}  {_outcome(before, now)}\n")


def _outcome(before: JobState, now: JobState) -> str:
    if before not in ("queued", "started"):
        return f"had already ended: {before}"
    if now in ("queued", "started"):
        return f"was {before}, asked to stop"
    return f"was {before}, now cancelled" if now == "cancelled" else f"was {before}, ended by itself meanwhile: {now}"


def _cancel_all(connection: redis.Redis, model: str, yes: bool, as_json: bool) -> ExitCode:
    from minilab_gen.protocol.bulk_cancel import cancel_waiting, count_waiting

    waiting = count_waiting(connection, model)
    question = f"Cancel all jobs that wait for {model}, {waiting} now?"
    if waiting and not yes and not click.confirm(question, err=True):
        say("nothing was cancelled")
        return ExitCode.FAILED
    cancelled = 0
    try:
        batches = cancel_waiting(connection, model)
        while True:
            with uninterrupted():  # so that what is said is what was done
                batch = next(batches, None)
                if batch is None:
                    break
                cancelled += batch
    finally:
        if as_json:
            write_json({"model": model, "cancelled": cancelled})
        else:
            write(f"{cancelled} cancelled\n")
    return ExitCode.DONE
