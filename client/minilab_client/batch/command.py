"""``minilab-client batch``: answer a file of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from minilab_client import parameters
from minilab_client.exit_codes import ExitCode
from minilab_client.job_options import max_queued_option, model_option, priority_option, timeout_option
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol import keys
from minilab_gen.protocol.keys import Priority

IN_FLIGHT: Final = 256
"""Jobs in the queue or running, by default: four workers of 64 slots each have as many, and one has three in waiting
for each that runs, so that it never waits for a look at those that have ended."""


@click.command(
    epilog="\b\nExample:\n  minilab-client batch in.jsonl --output out.jsonl",
)
@click.argument(
    "lines", metavar="IN", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), required=True
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    required=True,
    metavar="OUT",
    help="Where answers go, a line each, as they come. The lines that are there are not done again.",
)
@click.option(
    "--errors",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="ERR",
    help="Where the lines without an answer go, each with its reason. Default: OUT with .errors before its ending.",
)
@click.option(
    "--in-flight",
    type=parameters.whole_number_from_1,
    default=str(IN_FLIGHT),
    metavar="N",
    help=f"Maximum number of unfinished jobs. Default: {IN_FLIGHT}; four times the slots of all workers is good.",
)
@timeout_option
@priority_option("low")
@model_option
@max_queued_option("Wait while N or more jobs are in the queue. Default: no bound but --in-flight.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end: how many lines, of each kind.")
@click.option("--quiet", "-q", is_flag=True, help="Say only what goes wrong.")
@redis_url_option
@pass_settings
def batch(  # noqa: PLR0913, PLR0917 - click passes one argument for each option
    settings: ClientSettings,
    lines: Path,
    output: Path,
    errors: Path | None,
    in_flight: int,
    timeout: int,
    priority: Priority,
    model: str,
    max_queued: int | None,
    quiet: bool,
    as_json: bool,
) -> ExitCode:
    """Answer every line of IN, a JSONL file, or of standard input where IN is -.

    A line is an object with custom_id, prompt, chat or ids, and settings named as for `submit`; or one of OpenAI's
    batch format for /v1/completions or /v1/chat/completions. The answers go to OUT as they come. The same command once
    more does only what is missing, also after a kill: it finds the jobs that are still in the queue, and those that
    have ended since.

    Exit codes: 0 all lines have an answer, 1 some have none, 2 bad usage or no line can be read, 4 no Redis.
    """
    from minilab_client.batch.files import BatchFiles
    from minilab_client.batch.jsonl import beside
    from minilab_client.batch.run import answer
    from minilab_client.batch.waiting import StallNotes
    from minilab_gen.asked_model import AskedModel
    from minilab_gen.batch.pending_jobs import PendingJobs
    from minilab_gen.protocol.submission import Submission

    files = BatchFiles(lines, output, errors or beside(output, "errors"))
    submission = Submission(model, None, priority, timeout, None, max_queued)
    with settings.connect() as connection:
        asked = AskedModel.read(connection, model)
        pending = PendingJobs(connection, submission, asked.card.fingerprint, in_flight)
        notes = StallNotes(connection, keys.queue_name(model, priority), quiet=quiet)
        return answer(files, asked, pending, notes, quiet=quiet, as_json=as_json)
