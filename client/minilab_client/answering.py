"""One answer after the other in a conversation: asked, shown, stopped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import redis

from minilab_client.dialogue import Dialogue, Question
from minilab_client.exit_codes import ExitCode, say_end
from minilab_client.follow import WaitingNotes
from minilab_client.interrupts import uninterrupted
from minilab_client.output import flush, say, write
from minilab_gen.api import ended_by_name
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.model_settings import check_settings, own_ends, request_fields
from minilab_gen.protocol import endings
from minilab_gen.protocol.cards import all_cards, read_card, read_tokenizer
from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.submission import Submission, draw_seed, enqueue
from minilab_gen.protocol.tail import tail
from minilab_gen.request import DEFAULT_CHAT_TOKENS, GenerationRequest


class Answerer:
    """Has a model answer, and keeps the conversation."""

    def __init__(
        self,
        connection: redis.Redis,
        submission: Submission,
        dialogue: Dialogue,
        sampling: Mapping[str, object],
    ) -> None:
        """``sampling`` holds the settings that were given, by the names of a request's fields.

        Raises UnknownModelError, and RequestError for a model without a chat template or settings against a rule.
        """
        asked = check_settings(sampling, DEFAULT_CHAT_TOKENS)
        self._connection, self._submission, self._dialogue = connection, submission, dialogue
        self._sampling, self._max_new_tokens = sampling, asked.max_new_tokens
        self._model = self._read_model(None)

    def answer(self, said: str, *, goes_on: bool) -> ExitCode:
        """Show the answer to what was said, and remember both. Raises RequestError for what cannot be asked.

        An interrupt stops the answer; what was shown of it is remembered, too. It ends the program unless ``goes_on``.
        """
        job_id: str | None = None
        end: EndEvent | None = None
        shown = ""
        try:
            with uninterrupted():
                question = self._ask(said)
                job_id = self._submit(question)
            for event in tail(self._connection, job_id, on_wait=WaitingNotes()):
                with uninterrupted():
                    write(event.text)
                    shown += event.text
                    end = event if isinstance(event, EndEvent) else None
                flush()
        except KeyboardInterrupt:
            if job_id is not None:
                with suppress(KeyboardInterrupt), uninterrupted():  # a second one has nothing more to stop
                    endings.cancel(self._connection, job_id)
            if not goes_on:
                raise
        write("\n")
        flush()
        if shown:  # templates want an answer to each question, so one without any is forgotten
            self._dialogue.keep(said, shown)
        if end is None or job_id is None:
            say("stopped")
            return ExitCode.CANCELLED
        return self._say_end(job_id, end)

    def _ask(self, said: str) -> Question:
        self._model = self._read_model(self._model)
        question = self._dialogue.ask(said, self._model, self._max_new_tokens)
        if question.forgotten:
            turns = "turn is" if question.forgotten == 1 else f"{question.forgotten} turns are"
            context = self._model.card.context_length
            say(f"the conversation has outgrown the model's {context} tokens: its oldest {turns} left out from now on")
        return question

    def _submit(self, question: Question) -> str:
        given = request_fields(self._sampling, lambda: self._model.tokenizer)
        whole = {"max_new_tokens": self._max_new_tokens, "stop_ids": own_ends(self._sampling, question.stop_ids)}
        request = GenerationRequest.from_payload({**whole, **given, "prompt": question.prompt})
        request = request.cut_to(question.max_new_tokens)
        if "seed" not in self._sampling:
            request = request.with_seed(draw_seed())
        request = ended_by_name(request, self._model.card, self._model.tokenizer)
        request.check_fits(self._model.card.limits)
        return enqueue(self._connection, request, self._submission)

    def _read_model(self, known: AskedModel | None) -> AskedModel:
        """The model as it is announced now; its tokenizer, which may take long to read, only if that is another."""
        card = read_card(self._connection, self._submission.model)
        if card.chat is None:
            others = [other.name for other in all_cards(self._connection) if other.chat]
            remedy = f"give --model {' or '.join(others)}" if others else "start a worker for one that has one"
            raise RequestError(f"the model {card.name} has no chat template; {remedy}")
        if known is not None and known.card.tokenizer == card.tokenizer:
            return AskedModel(card, known.tokenizer)
        return AskedModel(card, read_tokenizer(self._connection, card))

    def _say_end(self, job_id: str, end: EndEvent) -> ExitCode:
        if end.reason in ("context", "length") and end.tokens < self._max_new_tokens:
            say("the answer was cut where the model's context is full; the oldest turns give way to the next one")
        elif end.reason == "length":
            say(f"the answer was cut after {end.tokens} tokens; --max-new-tokens lets it be longer")
        return say_end(job_id, end)
