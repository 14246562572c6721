"""``minilab-client retry``: ask again what ended jobs asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode, report
from minilab_client.job_options import wait_option
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.errors import MiniLabError

if TYPE_CHECKING:
    import redis


@click.command(
    epilog="\b\nExamples:\n  minilab-client retry 4f2a --follow\n  minilab-client retry 4f2a 9c01",
)
@click.argument("ids", metavar="JOB...", type=parameters.job_id, nargs=-1, required=True)
@click.option("--follow", "follows", is_flag=True, help="Print the text as it comes; the new id goes to stderr.")
@wait_option("With --follow: read for so long at most. Default: to the end of the job")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@redis_url_option
@pass_settings
def retry(settings: ClientSettings, ids: tuple[str, ...], follows: bool, wait: float | None, as_json: bool) -> ExitCode:
    """Submit each JOB that has ended again, however it ended, and print the ids of the new jobs.

    They have the same request, seed, model, priority, timeout and ttl, and a new id: a token stream that has ended is
    closed for good, and what it holds stays readable under the old one. A JOB that has not ended is refused. A group is
    submitted again as a group.
    """
    if wait is not None and not follows:
        raise click.UsageError("--wait goes with --follow")
    if follows and len(ids) > 1:
        raise click.UsageError(f"--follow takes one JOB, got {len(ids)}")
    from minilab_client.submitted import follow_submitted, say_unserved

    code = ExitCode.DONE
    submitted: dict[str, list[str]] = {}
    with settings.connect() as connection:
        for job_id in ids:
            try:
                new_id, job_ids = _submit_again(connection, job_id, follows, as_json)
            except MiniLabError as error:  # the others are repeated all the same
                code = report(error)
            else:
                submitted[new_id] = job_ids
        if follows and submitted:
            return follow_submitted(connection, *next(iter(submitted.items())), as_json, wait)
        say_unserved(connection, *(job_ids[0] for job_ids in submitted.values()))
    return code


def _submit_again(connection: redis.Redis, name: str, follows: bool, as_json: bool) -> tuple[str, list[str]]:
    """The id of the new job or group, and those of its jobs."""
    from minilab_client.submitted import tell_submitted
    from minilab_gen.protocol.cards import read_card
    from minilab_gen.protocol.groups import job_ids_of, jobs_named
    from minilab_gen.protocol.original_request import original_request_of
    from minilab_gen.protocol.submission import enqueue_answers

    originals = [original_request_of(connection, job_id) for job_id in jobs_named(connection, name)]
    requests = [original.request for original in originals]
    submission = originals[0].submission
    for request in requests:
        request.check_fits(read_card(connection, submission.model).limits)
    new_id = enqueue_answers(connection, requests, submission)
    job_ids = job_ids_of(new_id, len(requests))
    settings = requests[0].settings
    seed = None if settings.is_greedy and settings.seed == 0 else settings.seed  # 0 is that of a job without one
    tell_submitted(new_id, job_ids, follows, as_json, model=submission.model, seed=seed, retry_of=name)
    return new_id, job_ids
