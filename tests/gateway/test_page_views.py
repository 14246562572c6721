"""The views of the page beside answers: jobs, batches, workers, and the settings of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker
from playwright.sync_api import BrowserContext, Page, expect
from support.engines import slow_engine, slower_engine
from support.waiting import wait_until

from gateway.browsing import ended, go_on, go_to, needs_browser, visit
from gateway.gateway_process import Gateway
from minilab_gen.protocol.streams import end_of
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

pytestmark = needs_browser

LONG = GenerationRequest((5, 6), max_new_tokens=120)


def test_a_job_is_listed_with_its_progress_opened_and_stopped(
    page: Page, shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(engine=slower_engine)
    visit(page, shared_gateway)
    go_on(page, "Phileas Fogg", max_tokens=90)
    expect(page.locator("#answer .token").nth(2)).to_be_attached()
    go_to(page, "jobs")

    row = page.locator("#jobs .rows li")
    expect(row.locator(".what")).to_have_text("Phileas Fogg")
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".tokens")).to_have_text(re.compile(r"[0-9]+ of 90 tokens"))
    expect(row.locator("progress")).to_have_attribute("max", "90")
    row.locator(".open").click()
    expect(page.locator("#opened .text")).to_have_text(re.compile(".+"))
    row.locator(".stop").click()
    expect(row.locator(".state")).to_have_text("stopped")
    expect(row.locator(".stop")).to_be_hidden()
    expect(page.locator("#opened .end")).to_have_text("[stopped]")
    page.keyboard.press("Escape")
    expect(page.locator("#opened")).to_be_hidden()


def test_jobs_stand_newest_first_and_an_empty_list_says_what_comes_there(
    page: Page, shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker()
    visit(page, shared_gateway)
    go_to(page, "jobs")
    expect(page.locator("#jobs .empty")).to_be_visible()
    made = [shared_gateway.complete(model="base", prompt=[5, 6], max_tokens=n).id for n in (2, 3)]

    expect(page.locator("#jobs .rows li")).to_have_count(2)
    expect(page.locator("#jobs .what")).to_have_text(made[::-1])
    expect(page.locator("#jobs .empty")).to_be_hidden()


def test_a_response_is_listed_and_opened_too(page: Page, chat_gateway: Gateway) -> None:
    body = {"model": "base", "input": "un", "max_output_tokens": 4, "temperature": 0}
    with chat_gateway.http() as http:
        made = http.post("/v1/responses", json=body).json()
    visit(page, chat_gateway)
    go_to(page, "jobs")
    page.locator("#jobs .open").click()

    expect(page.locator("#opened .end")).to_have_text(f"[{made['status']}]")
    assert page.locator("#opened .text").text_content() == made["output"][0]["content"][0]["text"]


def test_workers_and_queues_are_shown_as_they_stand(
    page: Page, shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(max_batch=1, engine=slow_engine)
    job_ids = [enqueue(server, LONG, Submission()) for _ in range(30)]
    visit(page, shared_gateway)
    go_to(page, "workers")

    workers, queues = page.locator("#workers tbody").all()
    expect(workers.locator("tr")).to_have_count(1)
    expect(workers.locator("tr td").nth(1)).to_have_text("● up")
    expect(workers.locator("tr td").nth(2)).to_have_text(" 1 / 1")
    expect(queues.locator("tr td").nth(1)).to_have_text("1")
    expect(page.locator("#workers .plot polyline")).to_have_attribute("points", re.compile(r"\S+ \S+"))
    expect(page.locator("#workers dd").nth(3)).to_have_text(re.compile("[1-9]"))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    go_to(page, "completion")
    with page.expect_request("**/v1/completions"):
        go_on(page, "Phileas")
    assert not [url for url in requests if url.endswith("/service")]
    assert end_of(server, job_ids[-1]) is None


def test_a_batch_goes_up_and_its_answers_and_errors_come_down(page: Page, gateway: Gateway, tmp_path: Path) -> None:
    bodies = [{"model": "base", "prompt": [5, n], "max_tokens": 3, "temperature": 0} for n in range(1, 4)]
    lines = [line_of(f"r{n}", body) for n, body in enumerate(bodies)]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join([*lines, line_of("bad", {**bodies[0], "top_k": -5})]))
    visit(page, gateway)
    go_to(page, "batches")
    expect(page.locator("#batches .empty")).to_be_visible()
    page.set_input_files("#batch-file", file)
    page.click("#upload button")

    row = page.locator("#batches .rows li")
    expect(row.locator(".what")).to_have_text("requests.jsonl")
    expect(row.locator(".state")).to_have_text("done")
    expect(row.locator(".tokens")).to_have_text("3 of 4 answered, 1 failed")
    with page.expect_download() as answers:
        row.get_by_role("button", name="Answers").click()
    with page.expect_download() as errors:
        row.get_by_role("button", name="Errors").click()
    found = [json.loads(line) for line in answers.value.path().read_text().splitlines()]
    assert sorted(each["custom_id"] for each in found) == ["r0", "r1", "r2"]
    assert [json.loads(line)["custom_id"] for line in errors.value.path().read_text().splitlines()] == ["bad"]


def test_a_batch_is_stopped_and_a_bad_file_is_told(
    page: Page, shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis, tmp_path: Path
) -> None:
    start_worker(max_batch=1, engine=slower_engine)
    body = {"model": "base", "prompt": [5], "max_tokens": 100}
    good, bad = tmp_path / "many.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(line_of(f"r{n}", body) for n in range(20)))
    bad.write_text("this is no JSON")
    visit(page, shared_gateway)
    go_to(page, "batches")
    for file in (good, bad):
        page.set_input_files("#batch-file", file)
        page.click("#upload button")
        expect(page.locator("#notice")).to_have_text(re.compile(f"{file.name} has begun"))

    many = page.locator("#batches .rows li", has_text="many.jsonl")
    many.get_by_role("button", name="Stop").click()
    expect(many.locator(".state")).to_have_text("stopped")
    told = page.locator("#batches .rows li", has_text="bad.jsonl")
    expect(told.locator(".state")).to_have_text("failed")
    expect(told.locator(".errors")).to_have_text(re.compile("Line 1: .+"))


def line_of(custom_id: str, body: dict[str, Any]) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def test_all_settings_go_into_the_request_under_the_apis_names(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    go_to(page, "completion")
    for folded in page.locator("#settings details").all():
        folded.locator("summary").click()
    wanted: dict[str, Any] = {
        "max_tokens": 4,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "seed": 3,
        "stop": ["xx", "yy"],
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logit_bias": {"12": -5},
        "allowed_token_ids": list(range(5, 60)),
        "bad_words": ["zz"],
        "bad_words_ids": [[7, 8]],
        "min_tokens": 1,
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "n": 2,
        "logprobs": 1,
    }
    for name, value in wanted.items():
        if value is True:
            page.check(f"[name={name}]")
        elif name in ("stop", "bad_words"):
            page.fill(f"[name={name}]", "\n".join(value))
        elif name in ("allowed_token_ids", "stop_token_ids"):
            page.fill(f"[name={name}]", ", ".join(map(str, value)))
        else:
            page.fill(f"[name={name}]", json.dumps(value))
    page.fill("#prompt", "Phileas")
    with page.expect_request("**/v1/completions") as sent:
        page.click("#go-on button[type=submit]")

    assert sent.value.post_data_json == {"model": "base", "prompt": "Phileas", "stream": True, **wanted}
    expect(page.locator("#answer .end")).to_have_text([re.compile(r"\[[a-z]+\]")] * 2)
    expect(page.locator("#answer .choice b")).to_have_text("Answer 2")
    expect(page.locator("#settings .set")).to_have_text(["8 set", "4 set", "", "2 set", ""])


def test_a_setting_that_cannot_be_read_is_shown_and_nothing_is_sent(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    go_to(page, "completion")
    page.get_by_text("More sampling").click()
    page.fill("[name=logit_bias]", "{12: -5}")
    page.get_by_text("More sampling").click()
    page.fill("#prompt", "Phileas")
    page.click("#go-on button[type=submit]")

    expect(page.locator("[name=logit_bias]")).to_be_visible()
    assert (
        page.locator("[name=logit_bias]").evaluate("input => input.validationMessage").startswith("This must be JSON")
    )
    assert page.locator("#answer").inner_text() == ""


@pytest.mark.parametrize(
    ("form", "text", "answer"), [("choice", "yes\nyes", "yes"), ("regex", "[ab]c", "[ab]c"), ("grammar", "", "")]
)
def test_an_answer_keeps_the_form_that_is_chosen(
    page: Page, gateway: Gateway, form: str, text: str, answer: str
) -> None:
    visit(page, gateway)
    go_to(page, "completion")
    page.get_by_text("The form of the answer").click()
    page.select_option("[name=form]", form)
    page.fill("[name=form_text]", text)
    page.fill("#prompt", "X")
    page.click("#go-on button[type=submit]")

    if form == "grammar":  # with none given
        message = page.locator("[name=form_text]").evaluate("input => input.validationMessage")
        assert "must not be empty" in message
    else:
        assert re.fullmatch(rf"X{answer} \[stop\]", ended(page))


def test_an_error_is_told_with_what_to_do(context: BrowserContext, gateway: Gateway) -> None:
    page = context.new_page()
    visit(page, gateway)
    go_on(page, "Phileas", temperature=1)
    ended(page)
    page.route(
        "**/service/jobs*", lambda route: route.fulfill(status=503, json={"error": {"message": "Redis is unavailable"}})
    )
    with page.expect_response("**/service/jobs*"):
        page.evaluate("location.hash = '#/jobs'")

    expect(page.locator("#notice.failed")).to_have_text(re.compile("Redis is unavailable.*see that Redis"))
    page.unroute("**/service/jobs*")
    expect(page.locator("#notice")).to_have_text("")


def test_the_page_is_used_with_the_keyboard_alone(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    page.locator("nav a[data-view=jobs]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#jobs h2")).to_be_focused()
    page.locator("nav a[data-view=write]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#completion h2")).to_be_focused()
    page.locator("#prompt").focus()
    page.keyboard.type("Phileas")
    page.keyboard.press("Control+Enter")
    ended(page)

    assert page.url.endswith("#/write")
    page.go_back()
    expect(page.locator("#jobs")).to_be_visible()
    wait_until(lambda: page.title() == "Jobs · MiniLab Gen")
