"""Conversations of responses: what goes on from what, whatever has become of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
import redis
from minilab_gateway.errors import ApiError
from minilab_gateway.responses.notes import note_on
from minilab_worker.serving import ServedModel
from openai.types.responses import ResponseInputMessageItem

from gateway.conftest import StartGateway, served_chats
from gateway.gateway_process import Gateway
from gateway.test_http_failures import end_job
from gateway.test_response_jobs import BACKGROUND, error_of, expire
from gateway.test_response_streams import LONG
from gateway.test_responses import ask, expected_reply, extras_in, rendered
from minilab_gen.openai.bodies import AskedRequest
from minilab_gen.openai.response_bodies import AskedResponse
from minilab_gen.openai.response_items import MessageItem
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.streams import publish
from minilab_gen.request import GenerationRequest


def test_a_conversation_goes_on_with_the_reply_between(chat_gateway: Gateway, chat_served: ServedModel) -> None:
    first = ask(chat_gateway, input="un", instructions="Oui", max_output_tokens=3)

    second = ask(chat_gateway, input="deux", previous_response_id=first.id, max_output_tokens=3)
    third = ask(chat_gateway, input="trois", previous_response_id=second.id, max_output_tokens=3)

    said = [("user", "un"), ("assistant", first.output_text), ("user", "deux")]
    assert second.output_text == expected_reply(chat_served, *said, tokens=3)
    said += [("assistant", second.output_text), ("user", "trois")]
    assert third.output_text == expected_reply(chat_served, *said, tokens=3)
    assert (third.previous_response_id, second.instructions) == (second.id, None)
    assert second.usage is not None
    assert second.usage.input_tokens == len(chat_served.tokenizer.encode(rendered(*said[:3]), bare=True))


def test_the_output_of_a_response_is_an_input_of_the_next(chat_gateway: Gateway) -> None:
    first = ask(chat_gateway, input="un", max_output_tokens=3)
    given: list[Any] = [{"role": "user", "content": "un"}, *first.output, {"role": "user", "content": "deux"}]

    by_hand = ask(chat_gateway, input=given, max_output_tokens=3)

    chained = ask(chat_gateway, input="deux", previous_response_id=first.id, max_output_tokens=3)
    assert by_hand.output_text == chained.output_text


@pytest.mark.parametrize("name", ["resp_nobody", "../x", "x" * 10_000, "\x00", ""])
def test_what_is_unknown_gives_no_conversation(chat_gateway: Gateway, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chat_gateway, previous_response_id=name)

    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_is_not_stored_is_not_found_and_gives_no_conversation(chat_gateway: Gateway) -> None:
    answer = ask(chat_gateway, store=False)

    with pytest.raises(openai.NotFoundError) as unknown:
        chat_gateway.client().responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chat_gateway, previous_response_id=answer.id)
    assert (unknown.value.code, refused.value.code) == ("response_not_found", "previous_response_not_found")


def test_the_input_items_are_the_conversation_in_pages(chat_gateway: Gateway) -> None:
    first = ask(chat_gateway, input="un", max_output_tokens=2)
    second = ask(chat_gateway, input="deux", previous_response_id=first.id, max_output_tokens=2)
    items = chat_gateway.client().responses.input_items

    page = items.list(second.id, order="asc", limit=2)
    whole: list[Any] = list(items.list(second.id, limit=1))

    texts = [item.content[0].text for item in whole]
    assert texts == ["deux", first.output_text, "un"]
    assert [item.id for item in page.data] == [whole[2].id, whole[1].id]
    assert (page.data[1].id, page.has_next_page()) == (first.output[0].id, True)
    assert isinstance(page.data[0], ResponseInputMessageItem)
    assert extras_in(whole) == set()
    assert [item.id for item in items.list(first.id)] == [whole[2].id]


@pytest.mark.parametrize(
    "query", [{"order": "x"}, {"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"after": "nobody"}], ids=str
)
def test_a_page_that_cannot_be_is_refused(chat_gateway: Gateway, query: dict[str, str]) -> None:
    answer = ask(chat_gateway, max_output_tokens=1)
    with chat_gateway.http() as http:
        refused = http.get(f"/v1/responses/{answer.id}/input_items", params=query)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(query)))


def test_a_conversation_goes_on_after_restarts_and_after_earlier_responses_are_gone(
    start_gateway: StartGateway, server: redis.Redis, chat_served: ServedModel
) -> None:
    with served_chats(server, chat_served):
        one, two = start_gateway(), start_gateway()
        first = ask(one, input="un", max_output_tokens=3)
        second = ask(two, input="deux", max_output_tokens=3, previous_response_id=first.id)
        one.client().responses.delete(first.id)
        one.kill()
        third = ask(two, input="trois", max_output_tokens=3, previous_response_id=second.id)
        expire(server, second.id)
        two.kill()
        fourth = ask(start_gateway(), input="quatre", max_output_tokens=3, previous_response_id=third.id)

    replies = [first.output_text, second.output_text, third.output_text]
    said = [
        pair
        for text, reply in zip(["un", "deux", "trois"], replies, strict=True)
        for pair in (("user", text), ("assistant", reply))
    ]
    assert fourth.output_text == expected_reply(chat_served, *said, ("user", "quatre"), tokens=3)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (None, (409, "previous_response_in_progress")),
        ("error", (400, "previous_response_not_completed")),
        ("cancelled", (400, "previous_response_not_completed")),
    ],
)
def test_no_conversation_goes_on_from_half_an_answer(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str], reason: Any, error: tuple[int, str]
) -> None:
    with shared_gateway.http() as http:
        name = http.post("/v1/responses", json=BACKGROUND).json()["id"]
        job_id = by_hand()
        publish(server, [(job_id, TokenEvent(1, 5, "a"))], running_ttl=60)
        if reason is not None:
            end_job(server, job_id, EndEvent(reason, 1, 2))
        refused = http.post("/v1/responses", json={**LONG, "previous_response_id": name})

    assert error_of(refused) == error
    assert refused.json()["error"]["param"] == "previous_response_id"


def test_a_conversation_that_no_record_can_hold_is_refused() -> None:
    request = AskedRequest(GenerationRequest((5,), max_new_tokens=1), 1, has_seed=True, echo=False)
    fits, more = (AskedResponse(request, (MessageItem("user", (size * "é",)),), {}) for size in (333_000, 334_000))

    note_on(fits, is_background=False, is_stored=True, previous=None)
    with pytest.raises(ApiError, match="at most 2000000 characters") as refused:
        note_on(more, is_background=False, is_stored=True, previous=None)
    assert (refused.value.status, refused.value.param) == (400, "input")
