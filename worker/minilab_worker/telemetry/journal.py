"""What becomes of single jobs, a line of the log each.

Nothing here shows what was asked or answered, unless the worker is told to. A refusal may quote the request, so its
reason stands in the stream only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from minilab_worker.job_run import JobRun

_log = logging.getLogger(__name__)


class Journal:
    """The lines about the jobs of one worker."""

    def __init__(self, *, shows_text: bool) -> None:
        """With ``shows_text`` the answer of each job that ended is written down as well."""
        self._shows_text = shows_text

    def started(self, run: JobRun) -> None:
        """A job was claimed."""
        if run.end is not None:
            return  # it does not run; its end is told
        if run.resumed_at:
            extra = {"job_id": run.job_id, "tokens": run.resumed_at}
            _log.debug("%s: resumed at token %d", run.job_id, run.resumed_at, extra=extra)
        else:
            extra = {"job_id": run.job_id, "prompt_tokens": run.transcript.prompt_tokens}
            _log.debug("%s: started, %d prompt tokens", run.job_id, run.transcript.prompt_tokens, extra=extra)

    def ended(self, runs: Iterable[JobRun]) -> None:
        """The ends of jobs are published."""
        for run in runs:
            _tell_end(run)
            if self._shows_text:
                extra = {"job_id": run.job_id, "text": run.transcript.text}
                _log.info("%s: answered: %s", run.job_id, run.transcript.text, extra=extra)

    def returned(self, runs: Iterable[JobRun]) -> None:
        """Jobs go back to their queue."""
        for run in runs:
            extra = {"job_id": run.job_id, "tokens": run.transcript.tokens}
            _log.debug("%s: returned after token %d", run.job_id, run.transcript.tokens, extra=extra)


def _tell_end(run: JobRun) -> None:
    end = run.end
    assert end is not None, "only a run that has ended is told as such"
    extra: dict[str, object] = {"job_id": run.job_id, "reason": end.reason, "tokens": end.tokens}
    if run.is_refused:
        _log.debug("%s: refused, the reason stands in its stream", run.job_id, extra=extra)
        return
    seconds = time.monotonic() - run.began
    speed = (end.tokens - run.resumed_at) / seconds
    extra |= {"seconds": round(seconds, 3), "tokens_per_second": round(speed, 1)}
    line = "%s: ended, %s, %d tokens in %.2f s, %.0f tokens/s"
    _log.debug(line, run.job_id, end.reason, end.tokens, seconds, speed, extra=extra)
    if end.error is not None:  # not the request's fault: the model's, this machine's, or that of workers before
        _log.warning("%s: failed: %s", run.job_id, end.error, extra={"job_id": run.job_id})
