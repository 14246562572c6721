"""``minilab-client status``: one job as it stands."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode
from minilab_client.output import write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option


@click.command(
    epilog="\b\nExample:\n  minilab-client status 4f2a",
)
@click.argument("job", type=parameters.job_id)
@click.option("--utc", is_flag=True, help="Show times in UTC. Default: local time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@redis_url_option
@pass_settings
def status(settings: ClientSettings, job: str, utc: bool, as_json: bool) -> ExitCode:
    """Show where JOB stands. The exit code is 0 whatever its state is, once it is known.

    Of a group, each job is shown. The group has started when one of its jobs has, and is over when all of them are;
    it has then failed, or was cancelled, if one of them has or was.
    """
    from minilab_client.group_status import show_group
    from minilab_client.standing import Standing, write_lines
    from minilab_gen.protocol.groups import jobs_named

    with settings.connect() as connection:
        job_ids = jobs_named(connection, job)
        if len(job_ids) > 1:
            return show_group(connection, job, job_ids, utc=utc, as_json=as_json)
        standing = Standing.of(connection, job)
    if as_json:
        write_json(standing.to_json())
    else:
        write_lines(standing.lines(datetime.now(UTC), utc=utc))
    return ExitCode.DONE
