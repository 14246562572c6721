"""A gateway works as the Redis user that docs/security.md gives to clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis
from minilab_worker.worker import Worker
from rq.job import Job
from support.redis_users import CLIENT, Urls, denials
from support.waiting import wait_until

from gateway.batch_files import begin, ended, jsonl, line, outcomes, run
from gateway.conftest import StartGateway
from gateway.test_access import ASKED, bearer, write_keys


def test_a_gateway_works_as_the_clients_user(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker], start_gateway: StartGateway
) -> None:
    start_restricted()
    gateway = start_gateway(url=user_urls[CLIENT])
    asked = {"model": "base", "prompt": [5, 6], "max_tokens": 8, "temperature": 0, "n": 2}

    plain = gateway.complete(**asked)
    chunks = gateway.chunks(**asked)

    for index in range(2):
        own = [chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(own) == plain.choices[index].text
    with gateway.http() as http:
        again = http.get(f"/v1/completions/{plain.id}").json()
        body = {"model": "base", "input": "Phileas", "max_output_tokens": 4, "background": True}
        made = http.post("/v1/responses", json=body).json()
        path = f"/v1/responses/{made['id']}"
        stream = http.get(path, params={"stream": "true"}).text
        cancelled = http.post(f"{path}/cancel").json()
        deleted = http.delete(path).json()
        gone = http.get(path)
    assert [choice["text"] for choice in again["choices"]] == [choice.text for choice in plain.choices]
    assert "response.output_text.done" in stream
    assert (cancelled["usage"]["output_tokens"], deleted["deleted"], gone.status_code) == (4, True, 404)
    wait_until(lambda: not server.exists(Job.key_for(made["id"].removeprefix("resp_"))))
    assert set(denials(server)) <= {(CLIENT, "client|id")}
    assert PASSWORD not in gateway.said


def test_files_and_batches_need_no_more_rights(
    server: redis.Redis, user_urls: Urls, start_restricted: Callable[..., Worker], start_gateway: StartGateway
) -> None:
    start_restricted()
    gateway = start_gateway("--batch-window", "3", url=user_urls[CLIENT])
    client = gateway.client()

    batch = run(gateway, [line("a", n=2), line("b", stream=True)])
    answers, errors = outcomes(client, batch)
    assert (set(answers), set(errors)) == ({"a"}, {"b"})
    assert len(client.files.list().data) == 3
    assert len(client.batches.list().data) == 1
    client.files.delete(batch.input_file_id)
    cut = begin(client, jsonl([line(f"n{number}", max_tokens=60, ignore_eos=True) for number in range(300)]))
    client.batches.cancel(cut.id)
    assert ended(client, cut).status == "cancelled"
    assert set(denials(server)) <= {(CLIENT, "client|id")}


PASSWORD = "c/ient@secret"


def test_limits_and_what_the_page_shows_work_as_the_clients_user(
    server: redis.Redis,
    user_urls: Urls,
    start_restricted: Callable[..., Worker],
    start_gateway: StartGateway,
    tmp_path: Path,
) -> None:
    start_restricted()
    keys = write_keys(tmp_path / "keys", "alice", options="requests-per-minute=9 tokens-per-minute=900 jobs=2")
    gateway = start_gateway("--api-keys", str(keys), url=user_urls[CLIENT])
    with gateway.http(headers=bearer("alice")) as http:
        answers = [http.post("/v1/completions", json=ASKED) for _ in range(3)]
        jobs = http.get("/service/jobs").json()["data"]
        wait_until(lambda: http.get("/service").json()["workers"])

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [job["id"] for job in jobs] == [answer.json()["id"] for answer in answers[::-1]]
    assert not [what for _, what in denials(server) if "limits" in what or "hdel" in what]
