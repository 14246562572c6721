"""``minilab-client verify``: whether ended jobs hold what a worker computes today."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

import click

from minilab_client import parameters
from minilab_client.completion import complete_models
from minilab_client.exit_codes import ExitCode, report
from minilab_client.jobs import say_unreadable
from minilab_client.output import flush, say, write, write_json
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol.events import TokenEvent
from minilab_gen.protocol.keys import PRIORITIES, Priority

if TYPE_CHECKING:
    import redis

    from minilab_gen.protocol.listing import JobRow
    from minilab_gen.protocol.verification import Verification


@click.command(
    epilog="\b\nExamples:\n  minilab-client verify 4f2a\n  minilab-client verify --last 100 --model base",
)
@click.argument("ids", metavar="[JOB]...", type=parameters.job_id, nargs=-1)
@click.option(
    "--last", type=parameters.whole_number_from_1, metavar="N", help="Verify the newest N jobs that have finished."
)
@click.option(
    "--model",
    type=parameters.model_name,
    metavar="NAME",
    shell_complete=complete_models,
    help="Only jobs for this model, with --last.",
)
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    default="low",
    show_default=True,
    help="Priority of the computation; low, so that no other job waits for it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each job.")
@redis_url_option
@pass_settings
def verify(
    settings: ClientSettings,
    ids: tuple[str, ...],
    last: int | None,
    model: str | None,
    priority: Priority,
    as_json: bool,
) -> ExitCode:
    """Have a worker compute each JOB again from its stored request, and compare token by token.

    Token ids, texts and ends must be the same. Of a job that was cancelled, failed or ran out of time, the tokens that
    it has are compared. The computation is a job of its own. Afterwards nothing of it remains in Redis, also after
    Ctrl-C. A job that another model has made, by its fingerprint, cannot be compared.

    Of a group, each job is verified. The exit code is 0 if all are equal, 1 if one is not.
    """
    if bool(ids) == (last is not None):
        raise click.UsageError("give either JOB... or --last N")
    if ids and model is not None:
        raise click.UsageError("--model goes with --last")
    with settings.connect() as connection:
        if last is None:
            return _verify(connection, _named(connection, ids), priority, as_json)
        newest = _newest(connection, last, model)
        if not newest:
            say("no finished job to verify")
        served = _served(connection, newest)
        code = _verify(connection, served, priority, as_json)
        return code if len(served) == len(newest) else ExitCode.FAILED


def _named(connection: redis.Redis, names: tuple[str, ...]) -> list[str]:
    from minilab_gen.protocol.groups import jobs_named

    return [job_id for name in names for job_id in jobs_named(connection, name)]


def _newest(connection: redis.Redis, count: int, model: str | None) -> list[JobRow]:
    from minilab_gen.protocol.listing import Wanted, newest_jobs
    from minilab_gen.protocol.verification import MARK

    rows = newest_jobs(connection, Wanted(state="finished", model=model), say_unreadable)
    return list(islice((row for row in rows if not row.job_id.startswith(MARK)), count))


def _served(connection: redis.Redis, rows: list[JobRow]) -> list[str]:
    """The ids of those whose model a worker serves: who asks for the newest jobs does not know for which to wait."""
    from minilab_gen.protocol import keys
    from minilab_gen.protocol.jobs import workers_alive

    away = Counter(row.model for row in rows)
    for model in list(away):
        if workers_alive(connection, keys.queue_name(model)):
            del away[model]
    for model, count in away.items():
        jobs = "1 job is" if count == 1 else f"{count} jobs are"
        say(f"no worker serves the model {model}: {jobs} not verified; start one, or choose others with --model")
    return [row.job_id for row in rows if row.model not in away]


def _verify(connection: redis.Redis, job_ids: list[str], priority: Priority, as_json: bool) -> ExitCode:
    from minilab_client.follow import WaitingNotes
    from minilab_gen.protocol import verification

    verdicts: list[Verification] = []
    code = ExitCode.DONE
    with closing(verification.verify(connection, job_ids, priority, WaitingNotes())) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, verification.Verification):
                verdicts.append(outcome)
                _show(outcome, as_json)
            else:
                code = report(outcome)
    equal = sum(verdict.equal for verdict in verdicts)
    if len(job_ids) > 1:
        say(f"{equal} of {len(job_ids)} jobs are equal")
    return code if equal == len(verdicts) else ExitCode.FAILED


def _show(verdict: Verification, as_json: bool) -> None:
    if as_json:
        write_json(_as_json(verdict))
    else:
        write(f"{verdict.job_id}  {verdict.message}\n")
    flush()


def _as_json(verdict: Verification) -> dict[str, object]:
    shown = asdict(verdict)
    difference = shown.pop("difference") or {}
    found = {name: difference.get(name) for name in ("token", "stored", "recomputed")}
    # `asdict` leaves a token a tuple.
    return shown | {name: _token(each) if isinstance(each, TokenEvent) else each for name, each in found.items()}


def _token(event: TokenEvent) -> dict[str, object]:
    listed = {} if event.logprobs is None else event.logprobs.to_json()
    return {"number": event.number, "token_id": event.token_id, "text": event.text, **listed}
