"""The stream of a response: which events, in which order, with which numbers; and where it can be gone on with."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any, get_args

import httpx2 as httpx
import pytest
import redis
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway, stream_of
from gateway.test_http_failures import end_job
from gateway.test_responses import ASKED, ask, extras_in
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.streams import publish

LONG: dict[str, Any] = {"model": "base", "input": "un", "max_output_tokens": 50, "temperature": 0, "ignore_eos": True}

OPENING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
DELTA = "response.output_text.delta"

KINDS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""OpenAI's types of events, by what their type says."""


def raw_stream(http: httpx.Client, **fields: Any) -> str:
    answer = http.post("/v1/responses", json={**LONG, "max_output_tokens": 5, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return answer.text


def events_in(raw: str) -> list[dict[str, Any]]:
    """The data of a stream's events, whose names and ids must say the same."""
    found = []
    for block in filter(None, raw.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and line[0] != ":")
        if not fields:
            continue
        data = json.loads(fields["data"])
        assert fields["event"] == data["type"]
        assert fields.get("id", str(data["sequence_number"])) == str(data["sequence_number"])
        found.append(data)
    return found


def blocks_in(raw: str) -> list[str]:
    return [block + "\n\n" for block in raw.split("\n\n") if block]


def check_whole(events: list[dict[str, Any]], tokens: int, last: str, *, background: bool = False) -> None:
    """What holds for the stream of any response, however it ended."""
    opening = ["response.created", "response.queued", *OPENING[1:]] if background else OPENING
    assert [event["type"] for event in events] == [*opening, *[DELTA] * tokens, *CLOSING, last]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    parts = [event for event in events if "content_index" in event]
    assert {(part["item_id"], part["output_index"], part["content_index"]) for part in parts} == {
        (events[-1]["response"]["id"].replace("resp_", "msg_"), 0, 0)
    }
    text = "".join(event["delta"] for event in events if event["type"] == DELTA)
    done, part, item, end = events[-4:]
    (message,) = end["response"]["output"]
    assert text == done["text"] == part["part"]["text"] == message["content"][0]["text"]
    assert item["item"] == message
    for event in events:
        parsed = TypeAdapter(KINDS[event["type"]]).validate_json(json.dumps(event), strict=True)
        assert extras_in(parsed) <= {"store", "seed"}, event
        if "response" in event:
            assert set(event["response"]) - set(Response.model_fields) == {"store", "seed"}


def test_a_stream_has_openais_events_in_their_order(chat_gateway: Gateway) -> None:
    plain = ask(chat_gateway, input="un", max_output_tokens=5)
    with chat_gateway.http() as http:
        events = events_in(raw_stream(http))
        same = http.get(f"/v1/responses/{events[0]['response']['id']}").json()

    check_whole(events, 5, "response.incomplete")
    assert events[-1]["response"] == same
    assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])
    assert events[-4]["text"] == plain.output_text


def test_a_stream_that_ends_by_itself_is_completed(chat_gateway: Gateway) -> None:
    text = ask(chat_gateway, input="un", max_output_tokens=5).output_text
    with chat_gateway.http() as http:
        events = events_in(raw_stream(http, stop=text[1:3]))

    assert events[-1]["type"] == "response.completed"
    check_whole(events, sum(event["type"] == DELTA for event in events), "response.completed")
    assert events[-4]["text"] == text[:1]


def test_an_empty_reply_has_all_but_the_deltas_of_text(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with shared_gateway.http() as http, stream_of(http, "/v1/responses", LONG) as lines:
        end_job(server, by_hand(), EndEvent("stop", 0, 2, stop_id=1))
        events = events_in("\n".join(lines))

    check_whole(events, 0, "response.completed")


@pytest.mark.parametrize("tokens", [0, 2])
@pytest.mark.parametrize(
    ("end", "last", "status"),
    [
        ({"reason": "error", "error": "broken"}, "response.failed", "failed"),
        ({"reason": "timeout", "phase": "running"}, "response.failed", "failed"),
        ({"reason": "cancelled"}, "response.incomplete", "cancelled"),
        ({"reason": "length", "text": "\ufffd"}, "response.incomplete", "incomplete"),
    ],
    ids=str,
)
def test_every_end_has_the_next_numbers_and_is_what_is_found_later(
    shared_gateway: Gateway,
    server: redis.Redis,
    by_hand: Callable[[], str],
    end: dict[str, Any],
    last: str,
    status: str,
    tokens: int,
) -> None:
    with shared_gateway.http() as http:
        with stream_of(http, "/v1/responses", {**LONG, "background": True}) as lines:
            job_id = by_hand()
            publish(server, [(job_id, TokenEvent(n + 1, 5, f"é{n}")) for n in range(tokens)], running_ttl=60)
            end_job(server, job_id, EndEvent(tokens=tokens, prompt_tokens=2, **end))
            events = events_in("\n".join(lines))
        found = http.get(f"/v1/responses/resp_{job_id}").json()
        path, at_last = f"/v1/responses/resp_{job_id}", events[-1]["sequence_number"]
        nothing = http.get(path, params={"stream": "true", "starting_after": str(at_last)})
        behind = http.get(path, params={"stream": "true", "starting_after": str(at_last + 1)})

    assert (nothing.status_code, nothing.text, behind.status_code) == (200, "", 400)
    check_whole(events, tokens + ("text" in end), last, background=True)
    assert events[-1]["response"] == found
    assert (found["status"], found["error"] is not None) == (status, status == "failed")
    if "error" in end:
        assert found["error"]["message"] == f"the job failed: broken, after {tokens} tokens"


def test_a_plain_request_whose_job_fails_is_a_500(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    answers: list[httpx.Response] = []

    def ask_for_it() -> None:
        with shared_gateway.http() as http:
            answers.append(http.post("/v1/responses", json=LONG))

    asking = threading.Thread(target=ask_for_it)
    asking.start()
    end_job(server, by_hand(), EndEvent("error", 0, 2, error="broken"))
    asking.join()

    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (500, "job_failed")


def test_openais_client_reads_a_stream_and_keeps_its_last_response(chat_gateway: Gateway) -> None:
    text = ask(chat_gateway, input="un", max_output_tokens=5).output_text
    asked: dict[str, Any] = {**ASKED, "input": "un", "max_output_tokens": 5}
    asked["extra_body"] = {"stop": text[2:4], "ignore_eos": True}

    with chat_gateway.client().responses.stream(**asked) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()

    assert (
        "".join(event.delta for event in events if event.type == DELTA)
        == final.output_text
        == text[: text.index(text[2:4])]
    )
    assert final.status == "completed"


async def test_the_async_client_gets_the_same(chat_gateway: Gateway) -> None:
    async with chat_gateway.async_client() as client:
        create: Any = client.responses.create
        plain = await create(**ASKED)
        stream = await create(**ASKED, stream=True)
        last = [event async for event in stream][-1]

    assert last.response.output_text == plain.output_text


def test_logprobs_come_with_their_deltas(chat_gateway: Gateway) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with chat_gateway.http() as http:
        events = events_in(raw_stream(http, **fields))

    check_whole(events, 5, "response.incomplete")
    parts = [one for event in events if event["type"] == DELTA for one in event["logprobs"]]
    assert parts == events[-4]["logprobs"]
    assert [len(one["top_logprobs"]) for one in parts] == [2] * 5


# going on with one


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_goes_on_behind_any_event_with_the_same_bytes_at_any_gateway(
    chat_gateway: Gateway, start_gateway: StartGateway, background: bool
) -> None:
    other = start_gateway()
    fields = {"background": background, "metadata": {"b": "1", "a": "2"}, "include": ["message.output_text.logprobs"]}
    with chat_gateway.http() as http, other.http() as elsewhere:
        whole = raw_stream(http, **fields, temperature=1)
        events, blocks = events_in(whole), blocks_in(whole)
        check_whole(events, 5, "response.incomplete", background=background)
        path = f"/v1/responses/{events[0]['response']['id']}"
        assert elsewhere.get(path, params={"stream": "true"}).text == whole
        for event in events:
            number = event["sequence_number"]
            rest = elsewhere.get(path, params={"stream": "true", "starting_after": str(number)}).text
            by_header = http.get(path, params={"stream": "true"}, headers={"Last-Event-ID": str(number)}).text
            assert rest == by_header == "".join(blocks[number + 1 :])
        for bad in (len(events), len(events) + 5, -1, "abc", "", "1.2", "٣"):
            refused = http.get(path, params={"stream": "true", "starting_after": str(bad)})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")
        assert http.get(path, params={"starting_after": "1"}).status_code == 400


def test_a_stream_in_the_background_goes_on_at_another_gateway_when_its_own_is_killed(
    start_gateway: StartGateway, slow_chat_gateway: Gateway
) -> None:
    killed = start_gateway()
    seen: list[str] = []
    with killed.http() as http:
        try:
            with stream_of(http, "/v1/responses", {**LONG, "background": True}) as lines:
                for line in lines:
                    seen.append(line)
                    if len(seen) == 60:
                        killed.kill()
        except httpx.TransportError:
            pass
    last = len(blocks_in("\n".join(seen))) - (not "\n".join(seen).endswith("\n"))
    before = "".join(block for block in blocks_in("\n".join(seen))[: last - 1])
    name = re.findall(r"resp_\w+", before)[0]
    with slow_chat_gateway.http() as http:
        path = f"/v1/responses/{name}"
        while_running = http.get(path).json()
        rest = http.get(path, params={"stream": "true", "starting_after": str(len(events_in(before)) - 1)}).text
        whole = http.get(path, params={"stream": "true"}).text

    assert while_running["status"] == "in_progress"
    assert whole.startswith(before)
    assert before + rest == whole
    check_whole(events_in(whole), 50, "response.incomplete", background=True)


def test_a_position_that_has_not_come_yet_is_refused(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with shared_gateway.http() as http:
        name = http.post("/v1/responses", json={**LONG, "background": True}).json()["id"]
        job_id = by_hand()
        path, at_once = f"/v1/responses/{name}", {"stream": "true", "starting_after": "2"}
        early = http.get(path, params=at_once)
        publish(server, [(job_id, TokenEvent(1, 5, "a"))], running_ttl=60)
        future = http.get(path, params={**at_once, "starting_after": "6"})
        end_job(server, job_id, EndEvent("stop", 1, 2))
        late = http.get(path, params={**at_once, "starting_after": "6"})

    assert "at most 1 by now" in early.json()["error"]["message"]
    assert "at most 5 by now" in future.json()["error"]["message"]
    assert [event["sequence_number"] for event in events_in(late.text)] == [7, 8, 9]


def test_a_stream_whose_job_expires_under_it_says_so_without_an_id(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with shared_gateway.http() as http, stream_of(http, "/v1/responses", {**LONG, "background": True}) as lines:
        job_id = by_hand()
        publish(server, [(job_id, TokenEvent(1, 5, "a"))], running_ttl=60)
        head = [next(lines) for _ in range(8)]
        server.delete(f"rq:job:{job_id}")
        rest = list(lines)

    events = events_in("\n".join([*head, *rest]))
    assert events[-1]["type"] == "error"
    assert events[-1]["sequence_number"] == len(events) - 1
    assert not any(line.startswith("id: ") for line in rest[-4:])


def test_a_stream_says_that_nothing_may_hold_it_back(chat_gateway: Gateway) -> None:
    with chat_gateway.http() as http:
        answer = http.post("/v1/responses", json={**LONG, "stream": True}, headers={"Accept-Encoding": "gzip"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert "content-encoding" not in answer.headers
