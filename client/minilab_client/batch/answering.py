"""One run of a batch, from its open files to its exit code."""

from __future__ import annotations

import time

import click

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.display import display
from minilab_client.batch.files import BatchFiles
from minilab_client.batch.output_file import OutputFile
from minilab_client.batch.pending_jobs import PendingJobs
from minilab_client.batch.raw_lines import read_lines
from minilab_client.batch.reader import LineReader
from minilab_client.batch.run import Batch
from minilab_client.batch.tally import Counters
from minilab_client.batch.waiting import StallNotes
from minilab_client.exit_codes import ExitCode
from minilab_client.output import flush, say, write_json


def answer(
    files: BatchFiles, model: AskedModel, pending: PendingJobs, notes: StallNotes, *, quiet: bool, as_json: bool
) -> ExitCode:
    """Answer the lines; the exit code for what became of them."""
    began, counters = time.monotonic(), Counters()
    try:
        with files.opened() as opened:
            counters.total = opened.total
            _say_other_models(opened.output, model)
            lines = LineReader(model).read(read_lines(opened.lines))
            with display(quiet=quiet) as shown:
                Batch(lines, model, pending, opened.output, opened.errors, counters).run(shown, notes)
    except KeyboardInterrupt:
        say(f"interrupted: {counters.with_answer:,} lines have an answer; {pending.submitted} jobs go on in the queue")
        say("the same command fetches what they answer and does the rest")
        if as_json:
            _write_counters(files, counters, began, interrupted=True)
            flush()
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        _write_counters(files, counters, began, interrupted=False)
    elif counters.without_answer or not quiet:
        say(counters.summary(files.errors.name, time.monotonic() - began))
    if counters.refused and counters.refused == counters.done:
        return ExitCode.REFUSED
    return ExitCode.FAILED if counters.without_answer else ExitCode.DONE


def _write_counters(files: BatchFiles, counters: Counters, began: float, *, interrupted: bool) -> None:
    counts = {name: getattr(counters, name) for name in ("total", "kept", "answered", "failed", "refused", "tokens")}
    named = {"output": str(files.output), "errors": str(files.errors) if counters.without_answer else None}
    write_json({**counts, "seconds": round(time.monotonic() - began, 3), **named, "interrupted": interrupted})


def _say_other_models(output: OutputFile, model: AskedModel) -> None:
    """Equal fingerprints give equal tokens; answers with another came from a model that has been replaced since."""
    known = model.card.fingerprint
    others = output.fingerprints.total() - output.fingerprints[known]
    if known and others:
        name = model.card.name
        say(f"answers by an earlier model named {name} stay as they are: {others:,}; another --output gets new ones")
