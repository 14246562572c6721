"""``minilab-client tail``: read a token stream from any token on."""

from __future__ import annotations

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode
from minilab_client.job_options import wait_option
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option


@click.command(
    epilog="\b\nExample:\n  minilab-client tail 4f2a --from 12",
)
@click.argument("job", type=parameters.job_id)
@click.option(
    "--from",
    "after",
    type=parameters.token_number,
    default="0",
    metavar="N",
    help="Begin after token N, that is with token N+1. Default: 0, the whole answer.",
)
@wait_option("Read for so long at most. Default: to the end of the job")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each token and one for the end.")
@redis_url_option
@pass_settings
def tail(settings: ClientSettings, job: str, after: int, wait: float | None, as_json: bool) -> ExitCode:
    """Print the tokens of JOB, waiting for those to come, until it ends.

    Any number of readers may do so at once. Ctrl-C stops the reading, not the job. Of a group, the answers are printed
    one after the other, and the exit code is that of the one that ended worst.
    """
    from minilab_client.answers import follow_answers
    from minilab_client.follow import JsonPrinter, TextPrinter, follow
    from minilab_gen.protocol.groups import jobs_named

    with settings.connect() as connection:
        job_ids = jobs_named(connection, job)
        if len(job_ids) == 1:
            return follow(connection, job, after, JsonPrinter() if as_json else TextPrinter(), wait=wait)
        if after:
            raise click.UsageError(
                f"--from goes with one job, {job} is a group; name one: {job_ids[0]} to {job_ids[-1]}"
            )
        return follow_answers(connection, job, job_ids, as_json, wait=wait)
