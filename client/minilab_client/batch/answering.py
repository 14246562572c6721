"""One run of a batch, from its open files to its exit code. It must not know what was typed."""

from __future__ import annotations

import time

import click

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.display import display
from minilab_client.batch.files import BatchFiles
from minilab_client.batch.flights import Flights
from minilab_client.batch.output_file import OutputFile
from minilab_client.batch.raw_lines import read_lines
from minilab_client.batch.reader import LineReader
from minilab_client.batch.run import Batch
from minilab_client.batch.tally import Tally
from minilab_client.batch.waiting import WaitingNotes
from minilab_client.exit_codes import ExitCode
from minilab_client.output import flush, say, write_json


def answer(
    files: BatchFiles, model: AskedModel, flights: Flights, notes: WaitingNotes, *, quiet: bool, as_json: bool
) -> ExitCode:
    """Answer the lines; the exit code for what became of them."""
    began, tally = time.monotonic(), Tally()
    try:
        with files.opened() as opened:
            tally.total = opened.total
            _say_other_models(opened.output, model)
            lines = LineReader(model).read(read_lines(opened.lines))
            with display(quiet=quiet) as shown:
                Batch(lines, model, flights, opened.output, opened.errors, tally).run(shown, notes)
    except KeyboardInterrupt:
        say(f"interrupted: {tally.with_answer:,} lines have an answer; {flights.submitted} jobs go on in the queue")
        say("the same command fetches what they answer and does the rest")
        if as_json:
            _write_tally(files, tally, began, interrupted=True)
            flush()
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        _write_tally(files, tally, began, interrupted=False)
    elif tally.without_answer or not quiet:
        say(tally.summary(files.errors.name, time.monotonic() - began))
    if tally.refused and tally.refused == tally.done:
        return ExitCode.REFUSED
    return ExitCode.FAILED if tally.without_answer else ExitCode.DONE


def _write_tally(files: BatchFiles, tally: Tally, began: float, *, interrupted: bool) -> None:
    counts = {name: getattr(tally, name) for name in ("total", "kept", "answered", "failed", "refused", "tokens")}
    named = {"output": str(files.output), "errors": str(files.errors) if tally.without_answer else None}
    write_json({**counts, "seconds": round(time.monotonic() - began, 3), **named, "interrupted": interrupted})


def _say_other_models(output: OutputFile, model: AskedModel) -> None:
    """Equal fingerprints give equal tokens; answers with another came from a model that has been replaced since."""
    known = model.card.fingerprint
    others = output.fingerprints.total() - output.fingerprints[known]
    if known and others:
        name = model.card.name
        say(f"answers by an earlier model named {name} stay as they are: {others:,}; another --output gets new ones")
