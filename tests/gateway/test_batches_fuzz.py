"""Whatever stands in what is asked of a batch, or in one of its lines: an answer or a refusal, never a failure."""

from __future__ import annotations

import json

import pytest
from minilab_gateway.schemas import body_schema

from gateway.batch_files import begin, ended, outcomes
from gateway.gateway_process import Gateway
from gateway.test_http_fuzz import GOOD, ODD, post
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, Route


@pytest.mark.parametrize(
    "name",
    ["input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", "unknown", "metadata.x"],
)
def test_no_value_of_a_batchs_fields_gives_a_500(chat_gateway: Gateway, name: str) -> None:
    failed = []
    with chat_gateway.http() as http:
        file = http.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"}).json()["id"]
        good = {"input_file_id": file, "endpoint": COMPLETIONS.url, "completion_window": "24h"}
        for value in ODD:
            body = {**good, "metadata": {"x": value}} if name == "metadata.x" else {**good, name: value}
            answer = post(http, "/v1/batches", body)
            if answer.status_code >= 500:
                failed.append((value, answer.text))
        for query in ("limit=x", "limit=-1", "limit=%00", "after=%00", "after=", "order=x", "purpose=%ff", "limit=1e9"):
            failed += [
                (path, query) for path in ("/v1/files", "/v1/batches") if http.get(f"{path}?{query}").status_code >= 500
            ]
        for content in (b"", b"[]", b"{", b"\xff", b"null"):
            assert http.post("/v1/batches", content=content).status_code == 400

    assert failed == []


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT_COMPLETIONS], ids=lambda route: route.url)
def test_no_value_of_any_field_in_a_line_stops_a_batch(chat_gateway: Gateway, route: Route) -> None:
    names = [name for name in [*body_schema(route)["properties"], "unknown"] if name != "model"]
    bodies = [{**GOOD[route.url], name: value} for name in names for value in ODD]
    lines = [
        json.dumps({"custom_id": str(number), "method": "POST", "url": route.url, "body": body})
        for number, body in enumerate(bodies)
    ]
    client = chat_gateway.client()

    batch = ended(client, begin(client, "\n".join(lines).encode(), route.url))

    assert batch.status == "completed", batch.errors
    answers, errors = outcomes(client, batch)
    assert {*answers, *errors} == {str(number) for number in range(len(lines))}
    told = [each["response"]["body"]["error"]["code"] for each in errors.values()]
    assert set(told) <= {None, "job_failed"}
    assert "Traceback" not in chat_gateway.said
