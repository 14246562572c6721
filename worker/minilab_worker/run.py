"""A run: one job while this worker serves it. It must not know about its neighbours or about threads."""

from __future__ import annotations

import time
from typing import Any

from rq.executions import Execution
from rq.job import Job

from minilab_gen.engine import Chosen, Ended, Sequence
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.request import GenerationRequest
from minilab_gen.tokenizer import Tokenizer


class Run:
    """A job, its sequence in the engine, and every event of its stream until it has ended.

    The events are kept so that a stream can be made whole after a lost connection.
    """

    def __init__(
        self,
        job: Job,
        execution: Execution,
        request: GenerationRequest,
        published: list[TokenEvent],
        tokenizer: Tokenizer,
    ) -> None:
        self.job, self.execution, self.request = job, execution, request
        self.events: list[Event] = list(published)
        self.confirmed = len(published)
        """Events that are known to stand in the stream."""
        self._decoder = tokenizer.decoder()
        for token in published:
            self._decoder.push(token.token_id)
        asked = job.timeout or keys.DEFAULT_TIMEOUT
        timeout = asked if 0 < asked <= keys.LONGEST_TIME else keys.LONGEST_TIME  # RQ's -1 is no limit
        self.running_ttl = timeout + keys.RETENTION
        """Seconds that the stream lives if nobody ends it."""
        self.sequence = Sequence(
            job.id, request, [token.token_id for token in published], deadline=time.monotonic() + timeout
        )

    @property
    def job_id(self) -> str:
        return str(self.job.id)

    @property
    def end(self) -> EndEvent | None:
        """Its terminal entry, once there is one."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, EndEvent) else None

    def take(self, outcome: Chosen | Ended) -> Event:
        """The event that an outcome of the engine makes."""
        event = self._token(outcome) if isinstance(outcome, Chosen) else self._end(outcome)
        self.events.append(event)
        return event

    def result(self) -> dict[str, Any]:
        """What RQ keeps as the return value of the job."""
        end = self.end
        assert end is not None, "a result is asked of a run that has ended"
        tokens = [event for event in self.events if isinstance(event, TokenEvent)]
        text = "".join(token.text for token in tokens) + end.text
        return {"ids": [token.token_id for token in tokens]} | end.to_json() | {"text": text}

    def _token(self, chosen: Chosen) -> TokenEvent:
        return TokenEvent(chosen.number, chosen.token_id, self._decoder.push(chosen.token_id))

    def _end(self, ended: Ended) -> EndEvent:
        return EndEvent(
            ended.reason,
            tokens=ended.sequence.tokens,
            prompt_tokens=len(self.request.prompt),
            text=self._decoder.flush(),
            stop_id=ended.sequence.ids[-1] if ended.reason == "stop" else None,
            error=ended.error,
            phase="running" if ended.reason == "timeout" else None,
        )
