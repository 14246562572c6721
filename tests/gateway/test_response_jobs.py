"""Responses as jobs: cancelled, deleted, retried, of other keys, and gone on from whatever has become of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from rq.job import Job
from rq.results import Result
from support.engines import very_slow_engine
from support.waiting import wait_until

from gateway.conftest import StartGateway, served_chats
from gateway.gateway_process import Gateway, stream_of
from gateway.test_access import bearer, write_keys
from gateway.test_http_failures import end_job
from gateway.test_response_streams import LONG, events_in
from gateway.test_responses import ask
from minilab_gen.protocol import keys
from minilab_gen.protocol.events import EndEvent, TokenEvent
from minilab_gen.protocol.jobs import queue_of
from minilab_gen.protocol.streams import end_of, publish, stream_length

BACKGROUND: dict[str, Any] = {**LONG, "background": True}


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def job_of(name: str) -> str:
    return name.removeprefix("resp_")


def expire(server: redis.Redis, name: str) -> None:
    """What Redis does after a day."""
    job_id = job_of(name)
    server.delete(Job.key_for(job_id), keys.token_stream(job_id), Result.get_key(job_id))


def wait_for_end(http: httpx.Client, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def is_over() -> bool:
        found.append(http.get(f"/v1/responses/{name}").json())
        return found[-1]["status"] not in ("queued", "in_progress")

    wait_until(is_over)
    return found[-1]


# cancelling


def test_a_response_that_waits_is_cancelled_without_a_token(
    shared_gateway: Gateway, start_worker: Callable[..., Worker]
) -> None:
    start_worker(1, engine=very_slow_engine)
    with shared_gateway.http() as http, stream_of(http, "/v1/responses", LONG) as running:
        [next(running) for _ in range(17)]  # the only slot is taken
        name = http.post("/v1/responses", json=BACKGROUND).json()["id"]
        assert http.get(f"/v1/responses/{name}").json()["status"] == "queued"

        cancelled = http.post(f"/v1/responses/{name}/cancel").json()
        again = http.post(f"/v1/responses/{name}/cancel")

    assert (cancelled["status"], cancelled["usage"]["output_tokens"]) == ("cancelled", 0)
    assert (again.status_code, again.json()) == (200, cancelled)


def test_a_response_that_runs_is_cancelled_and_what_there_is_of_it_stays(
    slow_chat_gateway: Gateway, server: redis.Redis
) -> None:
    with slow_chat_gateway.http() as http:
        with stream_of(http, "/v1/responses", BACKGROUND) as lines:
            head = [next(lines) for _ in range(40)]
            name = events_in("\n".join(head[:4]))[0]["response"]["id"]
            told = http.post(f"/v1/responses/{name}/cancel")
            events = events_in("\n".join([*head, *lines]))
        found = http.get(f"/v1/responses/{name}").json()

    end = end_of(server, job_of(name))
    assert end is not None
    assert told.status_code == 200
    assert told.json() == found == events[-1]["response"]
    assert (found["status"], end.reason, 0 < end.tokens < 50) == ("cancelled", "cancelled", True)
    assert found["output"][0]["content"][0]["text"]
    assert found["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete"), ("error", "failed")])
def test_to_cancel_what_has_ended_changes_nothing(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str], reason: Any, status: str
) -> None:
    with shared_gateway.http() as http:
        name = http.post("/v1/responses", json=BACKGROUND).json()["id"]
        end_job(server, by_hand(), EndEvent(reason, 0, 2))
        before = http.get(f"/v1/responses/{name}").json()
        told = http.post(f"/v1/responses/{name}/cancel")

        assert (told.status_code, told.json(), told.json()["status"]) == (200, before, status)
        assert http.get(f"/v1/responses/{name}").json() == before


def test_what_is_unknown_or_not_in_the_background_cannot_be_cancelled(gateway: Gateway) -> None:
    answer = ask(gateway)

    with pytest.raises(openai.BadRequestError, match="background true") as refused:
        gateway.client().responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError) as unknown:
        gateway.client().responses.cancel("resp_nobody")

    assert (refused.value.code, unknown.value.code) == ("not_in_background", "response_not_found")


def test_cancels_that_race_with_the_end_agree_with_the_stream(chat_gateway: Gateway) -> None:
    with chat_gateway.http() as http, ThreadPoolExecutor(8) as pool:

        def race(number: int) -> None:
            name = http.post("/v1/responses", json={**BACKGROUND, "max_output_tokens": 1 + number % 3}).json()["id"]
            told = http.post(f"/v1/responses/{name}/cancel").json()
            last = events_in(http.get(f"/v1/responses/{name}", params={"stream": "true"}).text)[-1]
            assert told == last["response"] == http.get(f"/v1/responses/{name}").json()
            assert told["status"] in ("cancelled", "incomplete", "completed")

        list(pool.map(race, range(24)))


# deleting


def test_a_deleted_response_is_gone_from_redis(chat_gateway: Gateway, server: redis.Redis) -> None:
    answer = ask(chat_gateway)
    wait_until(lambda: server.exists(Result.get_key(job_of(answer.id))))

    with chat_gateway.http() as http:
        deleted = http.delete(f"/v1/responses/{answer.id}")
        unknown = [
            http.request(method, f"/v1/responses/{answer.id}{path}")
            for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/input_items"))
        ]

    assert deleted.json() == {"id": answer.id, "object": "response.deleted", "deleted": True}
    assert [error_of(one) for one in unknown] == [(404, "response_not_found")] * 4
    assert [key for key in server.scan_iter() if job_of(answer.id).encode() in key] == []
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chat_gateway, previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found"
    chat_gateway.client().responses.delete(ask(chat_gateway).id)


def test_a_running_response_is_cancelled_before_it_is_deleted(slow_chat_gateway: Gateway, server: redis.Redis) -> None:
    with slow_chat_gateway.http() as http:
        name = http.post("/v1/responses", json=BACKGROUND).json()["id"]
        wait_until(lambda: stream_length(server, job_of(name))[0])
        deleted = http.delete(f"/v1/responses/{name}")

        assert deleted.json()["deleted"] is True
        assert http.get(f"/v1/responses/{name}").status_code == 404
    assert not server.exists(keys.token_stream(job_of(name)), Job.key_for(job_of(name)))


def test_a_response_is_hidden_while_a_worker_may_still_write_to_it(
    shared_gateway: Gateway, server: redis.Redis, by_hand: Callable[[], str]
) -> None:
    with shared_gateway.http() as http:
        asked = {"json": BACKGROUND, "headers": {"Idempotency-Key": "k"}}
        name = http.post("/v1/responses", **asked).json()["id"]  # type: ignore[arg-type]
        job_id = by_hand()
        server.hset(Job.key_for(job_id), "status", "started")
        publish(server, [(job_id, TokenEvent(1, 5, "a"))], running_ttl=60)
        http.delete(f"/v1/responses/{name}")

        assert error_of(http.get(f"/v1/responses/{name}")) == (404, "response_not_found")
        assert error_of(http.post("/v1/responses", **asked)) == (409, "idempotency_key_in_use")  # type: ignore[arg-type]
    assert server.ttl(Job.key_for(job_id)) > 0
    assert server.exists(keys.cancel_flag(job_id))


# what is found


def test_an_expired_response_says_so(gateway: Gateway, server: redis.Redis) -> None:
    answer = ask(gateway)
    expire(server, answer.id)

    with gateway.http() as http:
        for query in ({}, {"stream": "true", "starting_after": "3"}):
            expired = http.get(f"/v1/responses/{answer.id}", params=query)
            assert error_of(expired) == (404, "response_not_found")
            assert "unknown or expired response" in expired.json()["error"]["message"]


def test_everything_about_a_response_expires(gateway: Gateway, server: redis.Redis) -> None:
    names = [job_of(ask(gateway, max_output_tokens=1).id) for _ in range(3)]
    wait_until(lambda: all(server.ttl(Job.key_for(name)) > 0 for name in names))

    about = [key for key in server.scan_iter() if any(name.encode() in key for name in names)]
    assert about
    assert all(0 < server.ttl(key) <= keys.RETENTION for key in about)


def test_what_no_gateway_made_is_no_response(gateway: Gateway, server: redis.Redis) -> None:
    answer = gateway.complete(model="base", prompt=[5], max_tokens=1)
    damaged = ask(gateway).id
    job = Job.key_for(job_of(damaged))
    meta: Any = server.hget(job, "meta")
    server.hset(job, "meta", meta.replace(b'"un"', b"0").replace(b'"response":', b'"response": 1, "x":'))

    with gateway.http() as http:
        for name in (answer.id, answer.id.replace("cmpl-", "resp_"), damaged, "%00", "x" * 10_000, "resp_"):
            assert http.get(f"/v1/responses/{name}").status_code == 404
        assert http.get(f"/v1/completions/cmpl-{job_of(ask(gateway).id)}").status_code == 404


@pytest.mark.parametrize("levels", [230, 240, 300, 900])
def test_no_depth_of_a_body_gives_a_500(chat_gateway: Gateway, levels: int) -> None:
    deep = json.loads(levels * '{"x":' + "1" + levels * "}")
    tool = {"type": "function", "name": "x", "parameters": deep}
    chat = {"model": "base", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with chat_gateway.http() as http:
        answers = [
            http.post("/v1/responses", json={**LONG, "max_output_tokens": 1, "tools": [tool]}),
            http.post("/v1/responses", json={**LONG, "max_output_tokens": 1, "tools": [tool], "stream": True}),
            http.post("/v1/chat/completions", json={**chat, "metadata": deep}),
        ]

    assert {answer.status_code for answer in answers} == ({200} if levels == 230 else {400})


# retries


def test_a_retry_finds_the_first_response_and_another_body_is_refused(
    slow_chat_gateway: Gateway, server: redis.Redis
) -> None:
    headers = {"Idempotency-Key": "k"}
    with slow_chat_gateway.http() as http, ThreadPoolExecutor(6) as pool:

        def retry(_: int) -> str:
            return str(http.post("/v1/responses", json=BACKGROUND, headers=headers).json()["id"])

        names = set(pool.map(retry, range(6)))
        other = http.post("/v1/responses", json={**BACKGROUND, "input": "deux"}, headers=headers)
        elsewhere = http.post(
            "/v1/completions", json={"model": "base", "prompt": [5], "max_tokens": 1}, headers=headers
        )
        (name,) = names
        ended = wait_for_end(http, name)
        late = http.post("/v1/responses", json=BACKGROUND, headers=headers).json()

    assert late == ended
    assert error_of(other) == (409, "idempotency_key_in_use")
    assert error_of(elsewhere) == (409, "idempotency_key_in_use")
    assert len(list(server.scan_iter(match=keys.token_stream("*")))) == 1


def test_a_response_of_another_key_is_unknown_and_limits_hold(
    start_gateway: StartGateway, server: redis.Redis, chat_served: ServedModel, tmp_path: Path
) -> None:
    file = write_keys(tmp_path / "keys", "alice", options="jobs=2 models=base")
    file.write_text(file.read_text() + "\n" + write_keys(tmp_path / "more", "bob").read_text())
    gateway = start_gateway("--api-keys", str(file), "--queue-wait", "5")
    with (
        served_chats(server, chat_served, very_slow_engine),
        gateway.http(headers=bearer("alice")) as alice,
        gateway.http(headers=bearer("bob")) as bob,
    ):
        made = [alice.post("/v1/responses", json={**BACKGROUND, "max_output_tokens": 4}) for _ in range(3)]
        name = made[0].json()["id"]
        foreign = [
            bob.get(f"/v1/responses/{name}"),
            bob.post(f"/v1/responses/{name}/cancel"),
            bob.delete(f"/v1/responses/{name}"),
            bob.get(f"/v1/responses/{name}/input_items"),
            bob.post("/v1/responses", json={**LONG, "previous_response_id": name}),
        ]
        ended = wait_for_end(alice, name)
        wait_for_end(alice, made[1].json()["id"])
        wait_until(lambda: alice.post("/v1/responses", json={**LONG, "max_output_tokens": 1}).status_code == 200)
        other = alice.post("/v1/responses", json={**LONG, "model": "other"})

    assert [answer.status_code for answer in made] == [200, 200, 429]
    assert error_of(made[2]) == (429, "too_many_jobs")
    assert int(made[2].headers["retry-after"]) >= 1
    assert [answer.status_code for answer in foreign] == [404, 404, 404, 404, 400]
    assert foreign[4].json()["error"]["code"] == "previous_response_not_found"
    assert error_of(other) == (404, "model_not_found")
    assert ended["status"] == "incomplete"


def test_a_full_queue_refuses_before_any_stream_begins(
    start_gateway: StartGateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(1, engine=very_slow_engine)
    gateway = start_gateway("--max-queued", "1")
    with gateway.http() as http, stream_of(http, "/v1/responses", LONG) as running:
        [next(running) for _ in range(17)]
        http.post("/v1/responses", json=BACKGROUND)
        for fields in ({"stream": True}, {"background": True}, {}):
            refused = http.post("/v1/responses", json={**LONG, **fields})
            assert error_of(refused) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
        assert queue_of(server, keys.queue_name("base")).count == 1
