"""A batch from its open files to its exit code: lines in, jobs out, answers written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import click

from minilab_client.batch import own_form
from minilab_client.batch.files import BatchFiles, ErrorFile
from minilab_client.batch.output_file import OutputFile
from minilab_client.batch.progress import Counters, Display, display
from minilab_client.batch.reader import LineReader
from minilab_client.batch.waiting import StallNotes, through_outages
from minilab_client.exit_codes import ExitCode
from minilab_client.output import flush, say, write_json
from minilab_gen.asked_model import AskedModel
from minilab_gen.batch import openai_form
from minilab_gen.batch.choices import Choices, answers_of, choices_of, failed_of
from minilab_gen.batch.json_lines import read_lines
from minilab_gen.batch.line import BadLine, Line
from minilab_gen.batch.pending_jobs import EndedLine, PendingJobs

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between two looks at the jobs: they double while none ends, so that long jobs cost few looks."""

_LOOKS_SHARE: Final = 20
"""A pause is at least so many times as long as the look before it, a millisecond for 256 jobs: a worker may need the
same processor."""

_LINES_AT_ONCE: Final = 1000
"""Lines read before the jobs are looked at again: a file of which most is answered must not hold up the rest."""


class Batch:
    """One run over one file."""

    def __init__(
        self,
        lines: Iterator[Line | BadLine],
        model: AskedModel,
        pending: PendingJobs,
        output: OutputFile,
        errors: ErrorFile,
        counters: Counters,
    ) -> None:
        self._lines, self._model, self._pending = lines, model, pending
        self._output, self._errors, self._counters = output, errors, counters
        self._choices = Choices()
        self._is_read = False
        self._pause, self._looked = FIRST_PAUSE, 0.0

    def run(self, display: Display, notes: StallNotes) -> None:
        """Return when every line has its outcome. Raises RedisUnavailableError and what redis-py raises."""
        display.show(self._counters)
        while not (self._is_read and self._pending.is_empty):
            self._take_lines()
            through_outages(self._pending.submit)
            self._rest()
            began = time.monotonic()
            ended_lines = through_outages(self._pending.collect)
            self._looked = time.monotonic() - began
            for ended in ended_lines:
                self._record(ended)
            self._pause = FIRST_PAUSE if ended_lines else min(2 * self._pause, LONGEST_PAUSE)
            self._output.sync_if_due()
            display.show(self._counters)
            notes.look(self._pending, any_ended=bool(ended_lines))

    def _take_lines(self) -> None:
        """Read on as long as more jobs may be submitted."""
        for _ in range(_LINES_AT_ONCE):
            if not self._pending.free:
                return
            line = next(self._lines, None)
            if line is None:
                self._is_read = True
                return
            self._take(line)

    def _take(self, line: Line | BadLine) -> None:
        if isinstance(line, BadLine):
            self._errors.write(line.number, line.custom_id, "refused", line.reason)
            self._counters.refused += 1
        elif self._output.holds(line):
            self._counters.kept += 1
        else:
            for choice in choices_of(line):
                self._pending.add(choice)

    def _record(self, ended: EndedLine) -> None:
        together = self._choices.add(ended)
        if together is None:
            return
        failed = failed_of(together)
        if failed is None:
            given = answers_of(together)
            answer = own_form.answer if ended.line.form == "minilab" else openai_form.answer
            self._output.write(ended.line, answer(given, self._model))
            self._counters.answered += 1
            self._counters.tokens += sum(each.end.tokens for _, _, each in given)
        else:
            first, failure = failed
            self._errors.write(first.line.number, first.line.custom_id, failure.code, failure.reason, first.job_id)
            self._counters.failed += 1

    def _rest(self) -> None:
        """Give the processor away, unless there are lines to read that may be submitted."""
        if not self._pending.is_empty and (self._is_read or not self._pending.free):
            time.sleep(max(self._pause, _LOOKS_SHARE * self._looked))


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
