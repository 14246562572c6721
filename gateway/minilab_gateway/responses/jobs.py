"""Responses in Redis: each is a job, found by its id, and nothing besides. It must not know HTTP."""

from __future__ import annotations

from typing import Final

import redis

from minilab_gateway.completion import Completion
from minilab_gateway.errors import ApiError, unknown_response
from minilab_gateway.responses.events import last_number, last_number_of
from minilab_gateway.responses.notes import ResponseNote
from minilab_gateway.responses.objects import Response, response_object, status_of
from minilab_gateway.responses.output import output_of
from minilab_gateway.service import Service, Wish
from minilab_gen.errors import UnknownJobError
from minilab_gen.openai.response_items import Item
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import fetch, recorded_state
from minilab_gen.protocol.removal import erase_ended, hide, is_hidden
from minilab_gen.protocol.streams import published_tokens, stream_length
from minilab_gen.request import shown

_PREVIOUS: Final = "previous_response_id"


class ResponseJobs:
    """Reads and deletes the jobs of responses; all of it blocks."""

    def __init__(self, connection: redis.Redis, service: Service) -> None:
        self._connection, self._service = connection, service

    def of(self, completion: Completion) -> Response:
        """The response of a completion of the route of responses. Raises ApiError for one that was deleted."""
        note = ResponseNote.of_json(completion.note.response)
        if note is None or is_hidden(self._connection, completion.found.name):
            raise unknown_response(completion.public_id)
        return Response(completion, note)

    def find(self, given: str, owner: str) -> Response:
        """A response by its id. Raises ApiError: unknown, another's, not stored, deleted or expired are the same."""
        completion = self._service.find(given, "response", owner)
        found = None if completion is None else self.of(completion)
        if found is None or not found.note.is_stored:
            raise unknown_response(given[:100])
        return found

    def first_try(self, wish: Wish) -> Completion | None:
        """What an earlier request with the same Idempotency-Key has made. Raises ApiError."""
        completion = self._service.find_first_try(wish)
        if completion is not None and is_hidden(self._connection, completion.found.name):
            raise ApiError(409, "this Idempotency-Key made a response that was deleted", code="idempotency_key_in_use")
        return completion

    def earlier(self, given: object, owner: str) -> tuple[Item, ...]:
        """The conversation that a response goes on from; empty for None. Raises ApiError for one that gives none."""
        if given is None:
            return ()
        if not isinstance(given, str):
            raise ApiError(400, f"{_PREVIOUS} must be the id of a response, got {shown(given)}", param=_PREVIOUS)
        try:
            previous = self.find(given, owner)
            tokens, end = self._read(previous)
        except (ApiError, UnknownJobError):
            told = f"{_PREVIOUS} must be the id of a stored response that has not expired, got {shown(given)}"
            raise ApiError(400, told, code="previous_response_not_found", param=_PREVIOUS) from None
        if end is None:
            told = f"{_PREVIOUS} must be that of a response that has ended, {previous.completion.public_id} has not"
            raise ApiError(409, told, code="previous_response_in_progress", param=_PREVIOUS)
        if (status := status_of(end)) not in ("completed", "incomplete"):
            told = f"{_PREVIOUS} must be that of a response with a whole answer, this one is {status}"
            raise ApiError(400, told, code="previous_response_not_completed", param=_PREVIOUS)
        return previous.note.conversation(previous.name, output_of(previous, tokens, end).items)

    def state(self, response: Response) -> dict[str, object]:
        """The object of a response as it stands. Raises ApiError for one that has expired meanwhile."""
        try:
            tokens, end = self._read(response)
            if end is not None:
                output = output_of(response, tokens, end).objects()
                return response_object(response, status_of(end), output, end)
            job = fetch(self._connection, response.name)
            if not tokens and recorded_state(job) == "queued":
                return response_object(response, "queued")
        except UnknownJobError:
            raise unknown_response(response.completion.public_id) from None
        return response_object(response, "in_progress", output_of(response, tokens, None).objects())

    def end(self, response: Response) -> EndEvent | None:
        """How it ended."""
        return self._read(response)[1]

    def last_number(self, response: Response) -> int:
        """The number of the last event of its stream that a client can have seen by now."""
        if response.completion.calls is None:
            return last_number(response, *stream_length(self._connection, response.name))
        return last_number_of(response, *published_tokens(self._connection, response.name))

    def hide(self, response: Response) -> None:
        """From now on it is not found; a job that runs is cancelled."""
        hide(self._connection, response.name)
        self._service.cancel(response.completion.job_ids)

    def erase(self, response: Response) -> bool:
        """Delete its job; False where that has to wait for a worker."""
        try:
            return erase_ended(self._connection, response.name)
        except UnknownJobError:
            return True

    def _read(self, response: Response) -> tuple[list[TokenEvent], EndEvent | None]:
        tokens, end = published_tokens(self._connection, response.name)
        if end is None:
            settle(self._connection, response.name)
            tokens, end = published_tokens(self._connection, response.name)
        return tokens, end
