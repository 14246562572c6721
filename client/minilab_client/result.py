"""``minilab-client result``: the whole answer of a job that has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode, say_end
from minilab_client.job_options import wait_option
from minilab_client.output import flush, say_error, write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol.keys import LONGEST_TIME

if TYPE_CHECKING:
    import redis

    from minilab_client.follow import Of
    from minilab_gen.protocol.results import JobResult


@click.command(
    epilog="\b\nExamples:\n  minilab-client result 4f2a --wait\n  minilab-client result 4f2a --wait 60",
)
@click.argument("job", type=parameters.job_id)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "ids", "logprobs"]),
    default="text",
    show_default=True,
    help="The text, one JSON object, the token ids with commas between them, or a table of logprobs.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@wait_option("Wait for the end of the job, with a number for so long at most", flag_value=str(LONGEST_TIME))
@redis_url_option
@pass_settings
def result(settings: ClientSettings, job: str, form: str, as_json: bool, wait: float | None) -> ExitCode:
    """Print the answer of JOB, as far as it came where the job failed or was cancelled.

    A job that has not ended has none: the exit code is then 1. Of a group, the answers are printed in their order:
    texts under headings, JSON objects and ids on a line each. The exit code is that of the one that ended worst.
    """
    from minilab_client.answers import each, write_heading
    from minilab_client.follow import Of
    from minilab_gen.protocol.groups import jobs_named

    form = "json" if as_json else form
    with settings.connect() as connection:
        job_ids = jobs_named(connection, job)
        until = None if wait is None else time.monotonic() + wait

        def show(index: int, job_id: str) -> ExitCode:
            if len(job_ids) > 1 and form in ("text", "logprobs"):
                write_heading(index, job_id)
            left = wait if until is None or len(job_ids) == 1 else max(0.0, until - time.monotonic())
            return _show_one(connection, job_id, form, left, None if len(job_ids) == 1 else (index, Of(job, wait)))

        return each(job_ids, show)


def _show_one(
    connection: redis.Redis, job_id: str, form: str, wait: float | None, place: tuple[int, Of] | None
) -> ExitCode:
    """Show the answer of a job, which may have a place in a group."""
    from minilab_client.follow import wait_for_end
    from minilab_gen.protocol.results import result as read_result

    if wait is not None:
        wait_for_end(connection, job_id, wait, group=place and place[1])
    found = read_result(connection, job_id)
    if found is None:
        _say_unended(connection, job_id)
        return ExitCode.FAILED
    if form == "logprobs":
        from minilab_client.logprob_table import write_logprobs

        write_logprobs(connection, found)
    else:
        _show(found, form, place and place[0])
    flush()
    return say_end(job_id, found.end)


def _say_unended(connection: redis.Redis, job: str) -> None:
    from minilab_gen.protocol.jobs import view

    now = view(connection, job)
    so_far = f"it is {now.state}, with {now.tokens} tokens so far"
    say_error("NotEndedError", f"job {job} has not ended: {so_far}; --wait waits for its end")


def _show(found: JobResult, form: str, index: int | None) -> None:
    if form == "json":
        write_json(found.to_json() | ({} if index is None else {"index": index}))
    elif form == "ids":
        write(",".join(map(str, found.ids)) + "\n")
    elif found.text or found.end.succeeded:
        write(found.text + "\n")
