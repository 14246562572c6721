"""``minilab-client jobs``: the jobs that Redis knows of, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import get_args

import click

from minilab_client import parameters
from minilab_client.completion import complete_models
from minilab_client.output import say, write_json, write_table
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol.events import JobState
from minilab_gen.protocol.keys import PRIORITIES, Priority


@click.command(
    epilog="\b\nExamples:"
    "\n  minilab-client jobs --state failed --limit 5"
    "\n  minilab-client jobs --model base --priority high --since 2h",
)
@click.option("--state", type=click.Choice(get_args(JobState)), help="Only jobs in this state.")
@click.option(
    "--model",
    type=parameters.model_name,
    metavar="NAME",
    shell_complete=complete_models,
    help="Only jobs for this model.",
)
@click.option("--priority", type=click.Choice(PRIORITIES), help="Only jobs of this priority.")
@click.option(
    "--since",
    type=parameters.moment,
    metavar="TIME",
    help="Only jobs submitted since: 90s, 15m, 2h or 1d ago, or a date and time.",
)
@click.option(
    "--limit",
    type=parameters.whole_number_from_1,
    default="20",
    metavar="N",
    help="At most so many. Default: 20.",
)
@click.option("--utc", is_flag=True, help="Show times in UTC. Default: local time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of objects.")
@redis_url_option
@pass_settings
def jobs(  # noqa: PLR0917 - click passes one argument for each option
    settings: ClientSettings,
    state: JobState | None,
    model: str | None,
    priority: Priority | None,
    since: datetime | None,
    limit: int,
    utc: bool,
    as_json: bool,
) -> None:
    """List the jobs, newest first: those that wait, run, and ended within the last day.

    However many there are, only the newest of each queue are looked at. They are listed in the order of their
    submission, as far as none has overtaken a thousand others. Among the cancelled ones, those that an ordinary RQ
    worker ran are looked for in the last thousand failures.

    Of a prompt its beginning is shown, or the number of its ids where no tokenizer is known. TOKENS/S is the speed
    since the job was started last.
    """
    from minilab_client.job_lines import JobLine, job_lines
    from minilab_gen.protocol.listing import Wanted, newest_jobs

    wanted = Wanted(state, model, priority, since)
    with settings.connect() as connection:
        found = job_lines(connection, list(islice(newest_jobs(connection, wanted, say_unreadable), limit)))
    if as_json:
        write_json([line.to_json() for line in found])
    elif found:
        now = datetime.now(UTC)
        write_table(JobLine.HEADINGS, [line.cells(now, utc=utc) for line in found], {"PROMPT": "end"})
    else:
        say("no jobs" if wanted == Wanted() else "no jobs like that")


def say_unreadable(job_id: str) -> None:
    """Tell of a job that cannot be listed."""
    say(f"job {job_id} is skipped, its record cannot be read")
