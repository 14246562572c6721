"""Streams of responses with calls: which events, with which numbers, and where they can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
import redis
from minilab_worker.serving import ServedModel
from openai.types.responses import Response
from pydantic import TypeAdapter

from gateway.conftest import StartGateway, taken_by_hand
from gateway.gateway_process import Gateway, stream_of
from gateway.test_http_failures import end_job
from gateway.test_response_calls import ANSWERS, BETWEEN, CALLED, SUEZ, TOOLS, TWICE, Weather, body_of
from gateway.test_response_streams import CLOSING, DELTA, KINDS, blocks_in, events_in
from gateway.test_responses import extras_in
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.streams import publish

ADDED, DONE = "response.output_item.added", "response.output_item.done"
CALL = [ADDED, "response.function_call_arguments.delta", "response.function_call_arguments.done", DONE]
OPENING = ["response.created", "response.in_progress"]


@pytest.fixture
def by_hand(server: redis.Redis, tools_served: ServedModel) -> Callable[[], str]:
    """A worker of a model that calls, which is there and does nothing: the test says what its jobs give."""
    return taken_by_hand(server, tools_served)


def in_order(events: list[dict[str, Any]]) -> list[str]:
    """The types of events, with deltas of text that follow each other as one."""
    found: list[str] = []
    for event in events:
        if event["type"] != DELTA or found[-1] != DELTA:
            found.append(event["type"])
    return found


def check_whole(events: list[dict[str, Any]]) -> None:
    """What holds for any stream: numbers without a gap, OpenAI's types, and items that say what their events said."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        parsed = TypeAdapter(KINDS[event["type"]]).validate_json(json.dumps(event), strict=True)
        assert extras_in(parsed) <= {"store", "seed"}, event
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == DONE] == output
    assert [event["output_index"] for event in events if event["type"] == ADDED] == list(range(len(output)))
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert own[0]["item"] == {**item, "status": "in_progress", **empty(item)}
        said = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert said == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        assert [event["type"] for event in own[1:-1] if item["type"] == "function_call"] in ([], CALL[1:-1])


def empty(item: dict[str, Any]) -> dict[str, Any]:
    return {"arguments": ""} if item["type"] == "function_call" else {"content": []}


def raw_stream(gateway: Gateway, answer: str | None, **more: Any) -> str:
    with gateway.http() as http:
        given = http.post("/v1/responses", json=body_of(answer, stream=True, **more))
    assert given.status_code == 200, given.text
    return given.text


@pytest.mark.parametrize("text", ANSWERS)
def test_a_stream_has_the_events_of_its_items_and_ends_with_what_is_found_later(
    tools_gateway: Gateway, text: str
) -> None:
    events = events_in(raw_stream(tools_gateway, text))
    with tools_gateway.http() as http:
        found = http.get(f"/v1/responses/{events[0]['response']['id']}").json()

    check_whole(events)
    assert events[-1]["response"] == found


def test_text_comes_before_calls_and_an_answer_of_calls_has_no_message(tools_gateway: Gateway) -> None:
    message = [ADDED, "response.content_part.added", DELTA, *CLOSING]

    twice, called, between = (in_order(events_in(raw_stream(tools_gateway, text))) for text in (TWICE, CALLED, BETWEEN))

    assert twice == [*OPENING, *message, *CALL, *CALL, "response.completed"]
    assert called == [*OPENING, *CALL, "response.completed"]
    assert between == [*OPENING, *message, *CALL, *message, *CALL, "response.completed"]


@pytest.mark.parametrize("text", [TWICE, BETWEEN], ids=["twice", "between"])
@pytest.mark.parametrize("background", [False, True])
def test_a_stream_goes_on_behind_any_event_with_the_same_bytes_at_any_gateway(
    tools_gateway: Gateway, start_gateway: StartGateway, text: str, background: bool
) -> None:
    fields = {"background": background, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    whole = raw_stream(tools_gateway, text, **fields)
    events, blocks = events_in(whole), blocks_in(whole)
    check_whole(events)
    path = f"/v1/responses/{events[0]['response']['id']}"
    with start_gateway().http() as elsewhere:
        assert elsewhere.get(path, params={"stream": "true"}).text == whole
        for number in range(len(events)):
            rest = elsewhere.get(path, params={"stream": "true", "starting_after": str(number)})
            assert rest.text == "".join(blocks[number + 1 :])
        refused = elsewhere.get(path, params={"stream": "true", "starting_after": str(len(events))})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


def test_logprobs_come_with_the_text_and_not_with_calls(tools_gateway: Gateway) -> None:
    events = events_in(raw_stream(tools_gateway, BETWEEN, include=["message.output_text.logprobs"]))

    given = [one for event in events if event["type"] == DELTA for one in event["logprobs"]]
    done = [event["logprobs"] for event in events if event["type"] == CLOSING[0]]
    assert given == [one for logprobs in done for one in logprobs]
    first, second = ("".join(one["token"] for one in logprobs) for logprobs in done)
    assert first.startswith("Un")
    assert "deux" in second
    assert "Suez" not in first + second


def tokens(*texts: str) -> list[TokenEvent]:
    return [TokenEvent(number, 5, text) for number, text in enumerate(texts, start=1)]


SPOKEN = (
    "Un ",
    "mot",
    "\n<tool",
    "_call>",
    f'{{"name": "weather", "arguments": {SUEZ}',
    "}",
    "</tool_call>",
    " et",
    "<to",
)


@pytest.mark.parametrize("count", range(len(SPOKEN) + 1))
@pytest.mark.parametrize(
    ("end", "last", "status"),
    [
        ({"reason": "error", "error": "broken"}, "failed", "failed"),
        ({"reason": "timeout", "phase": "running"}, "failed", "failed"),
        ({"reason": "cancelled"}, "incomplete", "cancelled"),
        ({"reason": "length", "text": "\ufffd"}, "incomplete", "incomplete"),
        ({"reason": "stop", "stop_id": 1}, "completed", "completed"),
    ],
    ids=["error", "timeout", "cancelled", "length", "stop"],
)
def test_every_end_at_any_token_gives_items_and_numbers_that_are_found_again(
    shared_gateway: Gateway,
    server: redis.Redis,
    by_hand: Callable[[], str],
    end: dict[str, Any],
    last: str,
    status: str,
    count: int,
) -> None:
    with shared_gateway.http() as http:
        with stream_of(http, "/v1/responses", body_of(background=True, stream=True)) as lines:
            job_id = by_hand()
            publish(server, [(job_id, event) for event in tokens(*SPOKEN[:count])], running_ttl=60)
            end_job(server, job_id, EndEvent(tokens=count, prompt_tokens=2, **end))
            events = events_in("\n".join(lines))
        path, at_last = f"/v1/responses/resp_{job_id}", len(events) - 1
        found = http.get(path).json()
        nothing = http.get(path, params={"stream": "true", "starting_after": str(at_last)})
        behind = http.get(path, params={"stream": "true", "starting_after": str(at_last + 1)})

    check_whole(events)
    assert (events[-1]["type"], found["status"]) == (f"response.{last}", status)
    assert events[-1]["response"] == found
    assert (nothing.status_code, nothing.text, behind.status_code) == (200, "", 400)
    calls = [item for item in found["output"] if item["type"] == "function_call"]
    assert [(call["arguments"], call["status"]) for call in calls] == [(SUEZ, "completed")] * (count > 5)
    assert found["output"], "an answer without text or calls is an empty message"


def test_what_may_become_a_call_is_shown_when_that_is_decided_and_no_number_is_ahead_of_it(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    shown, lasts = [], []
    with shared_gateway.http() as http:
        path = f"/v1/responses/{http.post('/v1/responses', json=body_of(background=True)).json()['id']}"
        job_id = by_hand()
        for event in tokens(*SPOKEN):
            publish(server, [(job_id, event)], running_ttl=60)
            now = http.get(path).json()
            shown.append([item.get("name") or item["content"][0]["text"] for item in now["output"]])
            refused = http.get(path, params={"stream": "true", "starting_after": "999"}).json()["error"]["message"]
            lasts.append(int(refused.split("at most ")[1].split(" ")[0]))
            assert now["status"] == "in_progress"
        end_job(server, job_id, EndEvent("stop", len(SPOKEN), 2, stop_id=1))
        number = lasts[-1]
        raw = http.get(path, params={"stream": "true"}).text
        rest = http.get(path, params={"stream": "true", "starting_after": str(number)}).text

    assert shown[0] == ["Un"]
    assert shown[3] == shown[4] == ["Un mot"]
    assert shown[5] == ["Un mot", "weather"]
    assert shown[-1] == ["Un mot", "weather", " et"]
    assert lasts[3] == lasts[4] < lasts[5]
    assert lasts == sorted(lasts)
    assert rest == "".join(blocks_in(raw)[number + 1 :])


def test_openais_client_joins_a_stream_to_the_whole_response(tools_gateway: Gateway) -> None:
    tool: Any = openai.pydantic_function_tool(Weather, name="weather")["function"]
    body = body_of(TWICE, tools=[{"type": "function", **tool}])
    extras = {name: body.pop(name) for name in ("seed", "choice")}

    stream_call: Any = tools_gateway.client().responses.stream
    with stream_call(**body, extra_body=extras) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()

    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert [json.loads(event.snapshot) for event in deltas] == [
        {"city": "Suez", "days": 2},
        {"city": "Aden", "days": 2},
    ]
    assert [item.parsed_arguments for item in final.output[1:]] == [json.loads(event.snapshot) for event in deltas]
    assert (final.output_text, final.status) == ("Je vois <é.", "completed")


def test_a_retry_of_a_stream_gives_the_same_bytes(tools_gateway: Gateway) -> None:
    headers = {"Idempotency-Key": "once"}
    with tools_gateway.http() as http:
        first, again = (
            http.post("/v1/responses", json=body_of(TWICE, stream=True), headers=headers).text for _ in range(2)
        )

    assert first == again
    assert first.count('"type":"response.function_call_arguments.done"') == 2


async def test_the_async_client_reads_the_typed_events(tools_gateway: Gateway) -> None:
    async with tools_gateway.async_client() as client:
        create: Any = client.responses.create
        asked: dict[str, Any] = {"model": "base", "input": "?", "tools": TOOLS[:1], "tool_choice": "required"}
        stream = await create(**asked, stream=True)
        events = [event async for event in stream]

    assert [event.type for event in events] == [*OPENING, *CALL, "response.completed"]
    last = events[-1].response
    assert isinstance(last, Response)
    assert Weather.model_validate_json(events[-3].arguments).city in ("Suez", "Aden")
