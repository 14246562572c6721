"""``minilab-client result``: the whole answer of a job that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode, say_end
from minilab_client.job_options import wait_option
from minilab_client.output import say_error, write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol.keys import LONGEST_TIME

if TYPE_CHECKING:
    import redis

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

    A job that has not ended has none: the exit code is then 1.
    """
    from minilab_client.follow import wait_for_end
    from minilab_gen.protocol.results import result as read_result

    with settings.connect() as connection:
        if wait is not None:
            wait_for_end(connection, job, wait)
        found = read_result(connection, job)
        if found is None:
            _say_unended(connection, job)
            return ExitCode.FAILED
        if form == "logprobs" and not as_json:
            from minilab_client.logprob_table import write_logprobs

            write_logprobs(connection, found)
        else:
            _show(found, "json" if as_json else form)
    return say_end(job, found.end)


def _say_unended(connection: redis.Redis, job: str) -> None:
    from minilab_gen.protocol.jobs import view

    now = view(connection, job)
    so_far = f"it is {now.state}, with {now.tokens} tokens so far"
    say_error("NotEndedError", f"job {job} has not ended: {so_far}; --wait waits for its end")


def _show(found: JobResult, form: str) -> None:
    if form == "json":
        write_json(found.to_json())
    elif form == "ids":
        write(",".join(map(str, found.ids)) + "\n")
    elif found.text or found.end.succeeded:
        write(found.text + "\n")
