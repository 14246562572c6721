"""The transcript of a job: every event of its stream so far, and the text that its next token will add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minilab_gen.protocol.events import EndEvent, EndReason, Event, TokenEvent
from minilab_gen.request import GenerationRequest
from minilab_gen.text.stream_decoder import StreamDecoder
from minilab_gen.text.tokenizer import Tokenizer


class Transcript:
    """Token events, then one terminal event.

    ``request`` is None where the job holds none that can run; such a job gets its terminal event and no token.
    """

    def __init__(
        self, request: GenerationRequest | None = None, tokenizer: Tokenizer | None = None, events: Iterable[Event] = ()
    ) -> None:
        """``events`` are those that the stream holds already."""
        self._prompt, self._stop_ids = (request.prompt, request.stop_ids) if request else ((), ())
        self._tokenizer = tokenizer
        self.events: list[Event] = list(events)
        self._decoder = self._decoder_after(self.events)

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt)

    @property
    def end(self) -> EndEvent | None:
        """The terminal event, once there is one."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, EndEvent) else None

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.events) - (self.end is not None)

    @property
    def ids(self) -> list[int]:
        """The token ids of the answer so far."""
        return [event.token_id for event in self.events if isinstance(event, TokenEvent)]

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join([event.text for event in self.events])

    def add(self, token_id: int) -> TokenEvent:
        """Append the event of the next token."""
        assert self._decoder is not None, "a job without a request has no tokens"
        text = "" if token_id in self._stop_ids else self._decoder.push(token_id)
        event = TokenEvent(len(self.events) + 1, token_id, text)
        self.events.append(event)
        return event

    def close(self, reason: EndReason, **details: Any) -> EndEvent:
        """Append the terminal event, with what text is left."""
        assert self.end is None, "a transcript ends once"
        end = EndEvent(reason, len(self.events), self.prompt_tokens, text=self._rest(), **details)
        self.events.append(end)
        return end

    def adopt(self, stream: list[Event]) -> None:
        """Go on from what the stream holds, to which another worker may have written.

        It writes the same tokens, but can be ahead, and can have ended the job. A job has one end: that in the stream,
        or else ours, behind the tokens there.
        """
        if stream and isinstance(stream[-1], EndEvent):
            self.events = list(stream)
        elif self.end is not None and len(stream) >= self.end.number:
            end = self.end
            self.restart(stream)
            self.events.append(replace(end, tokens=len(stream), text=self._rest()))

    def restart(self, events: Iterable[Event]) -> None:
        """Begin again behind these events."""
        self.events = list(events)
        self._decoder = self._decoder_after(self.events)

    def drop_decoder(self) -> None:
        """Add no more text: the decoder failed."""
        self._tokenizer = self._decoder = None

    def result(self) -> dict[str, Any]:
        """What RQ keeps as the return value of the job."""
        end = self.end
        assert end is not None, "a result is asked of a job that has ended"
        return {"ids": self.ids} | end.to_json() | {"text": self.text}

    def _rest(self) -> str:
        return self._decoder.flush() if self._decoder else ""

    def _decoder_after(self, events: Iterable[Event]) -> StreamDecoder | None:
        """A decoder that has seen these tokens."""
        decoder = self._tokenizer.decoder(self._prompt) if self._tokenizer else None
        if decoder is not None:
            for event in events:
                if isinstance(event, TokenEvent) and event.token_id not in self._stop_ids:
                    decoder.push(event.token_id)
        return decoder
