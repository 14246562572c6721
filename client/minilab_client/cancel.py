"""``minilab-client cancel``: ask that jobs stop. It must not say that one has stopped before it has."""

from __future__ import annotations

import click
import redis

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode, report
from minilab_client.output import write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.errors import UnknownJobError
from minilab_gen.protocol import endings, jobs
from minilab_gen.protocol.jobs import JobState


@click.command(
    short_help="Ask that jobs stop.",
    epilog="\b\nExample:\n  minilab-client cancel 4f2a",
)
@click.argument("ids", metavar="JOB...", type=parameters.job_id, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each job.")
@redis_url_option
@pass_settings
def cancel(settings: ClientSettings, ids: tuple[str, ...], as_json: bool) -> ExitCode:
    """Ask that each JOB stop: at once while it waits, within two tokens while it runs.

    The tokens that it has stay readable. A job that has ended stays as it is, which is no error.
    """
    code = ExitCode.DONE
    with settings.connect() as connection:
        for job_id in ids:
            try:
                _cancel(connection, job_id, as_json)
            except UnknownJobError as error:  # one that is not there keeps nobody from stopping the others
                code = report(error)
    return code


def _cancel(connection: redis.Redis, job_id: str, as_json: bool) -> None:
    before = endings.cancel(connection, job_id)
    now = jobs.state_of(jobs.fetch(connection, job_id))
    if as_json:
        write_json({"job_id": job_id, "was": before, "state": now})
    else:
        write(f"{job_id}  {_outcome(before, now)}\n")


def _outcome(before: JobState, now: JobState) -> str:
    if before not in ("queued", "started"):
        return f"had already ended: {before}"
    return f"was {before}, now cancelled" if now == "cancelled" else f"was {before}, told to stop"
