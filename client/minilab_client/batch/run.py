"""A batch from its first line to its last: lines in, jobs out, answers written. It must not know RQ or click."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from minilab_client.batch import openai_form, own_form
from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.display import Display
from minilab_client.batch.error_file import ErrorFile
from minilab_client.batch.flights import Flights, Landing
from minilab_client.batch.line import BadLine, Line
from minilab_client.batch.outages import through_outages
from minilab_client.batch.output_file import OutputFile
from minilab_client.batch.tally import Tally
from minilab_client.batch.waiting import WaitingNotes
from minilab_gen.protocol.results import Answer

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
        flights: Flights,
        output: OutputFile,
        errors: ErrorFile,
        tally: Tally,
    ) -> None:
        self._lines, self._model, self._flights = lines, model, flights
        self._output, self._errors, self._tally = output, errors, tally
        self._is_read = False
        self._pause, self._looked = FIRST_PAUSE, 0.0

    def run(self, display: Display, notes: WaitingNotes) -> None:
        """Return when every line has its outcome. Raises RedisUnavailableError and what redis-py raises."""
        display.show(self._tally)
        while not (self._is_read and self._flights.are_over):
            self._take_lines()
            through_outages(self._flights.launch)
            self._rest()
            began = time.monotonic()
            landings = through_outages(self._flights.land)
            self._looked = time.monotonic() - began
            for landing in landings:
                self._record(landing)
            self._pause = FIRST_PAUSE if landings else min(2 * self._pause, LONGEST_PAUSE)
            self._output.sync_if_due()
            display.show(self._tally)
            notes.look(self._flights, have_landed=bool(landings))

    def _take_lines(self) -> None:
        """Read on while there is room for more jobs."""
        for _ in range(_LINES_AT_ONCE):
            if not self._flights.room:
                return
            line = next(self._lines, None)
            if line is None:
                self._is_read = True
                return
            self._take(line)

    def _take(self, line: Line | BadLine) -> None:
        if isinstance(line, BadLine):
            self._errors.write(line.number, line.custom_id, "refused", line.reason)
            self._tally.refused += 1
        elif self._output.holds(line):
            self._tally.kept += 1
        else:
            self._flights.add(line)

    def _record(self, landing: Landing) -> None:
        line, outcome = landing.line, landing.outcome
        if isinstance(outcome, Answer):
            answer = openai_form.answer if line.form == "openai" else own_form.answer
            self._output.write(line, answer(line, landing.job_id, outcome, self._model))
            self._tally.answered += 1
            self._tally.tokens += outcome.end.tokens
        else:
            self._errors.write(line.number, line.custom_id, outcome.code, outcome.reason, landing.job_id)
            self._tally.failed += 1

    def _rest(self) -> None:
        """Leave the processor to others, unless there are lines to read and room for them."""
        if not self._flights.are_over and (self._is_read or not self._flights.room):
            time.sleep(max(self._pause, _LOOKS_SHARE * self._looked))
