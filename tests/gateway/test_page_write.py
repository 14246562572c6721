"""A chat and a completion side by side, and what becomes of their answers when one stops, leaves or looks closer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.serving import ServedModel
from minilab_worker.worker import Worker
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect
from support.engines import slower_engine
from support.own_service import OwnService
from support.waiting import wait_until

from gateway.browsing import ended, go_on, go_to, needs_browser, visit
from gateway.conftest import served_chats
from gateway.gateway_process import Gateway
from minilab_gen.protocol import keys
from minilab_gen.protocol.streams import end_of
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

pytestmark = needs_browser

NARROW: ViewportSize = {"width": 1000, "height": 800}
WIDE: ViewportSize = {"width": 1280, "height": 800}


def ask_for_sixty(page: Page) -> None:
    """All of them: an answer that is sampled might end before."""
    page.locator("#settings-panel").evaluate("panel => { panel.open = true; }")
    page.fill("[name=max_tokens]", "60")
    page.get_by_text("Where the answer ends").click()
    page.check("[name=ignore_eos]")


def test_a_chat_and_a_completion_are_answered_side_by_side(page: Page, slow_chat_gateway: Gateway) -> None:
    visit(page, slow_chat_gateway)
    ask_for_sixty(page)
    page.fill("#message", "un")
    page.keyboard.press("Enter")
    page.fill("#prompt", "Phileas")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#messages .token").nth(2)).to_be_attached()
    expect(page.locator("#answer .token").nth(2)).to_be_attached()
    expect(page.locator("main .stop:enabled:visible")).to_have_count(2)

    page.click("#chat .stop")
    expect(page.locator("#messages .end")).to_have_text("[stopped]")
    assert ended(page).endswith("[length]")
    left, right, settings = (page.locator(each).bounding_box() for each in ("#chat", "#completion", "#settings-panel"))
    assert left is not None
    assert right is not None
    assert settings is not None
    assert left["x"] + left["width"] <= right["x"]
    assert right["x"] + right["width"] <= settings["x"]
    assert left["y"] == right["y"]


def test_a_narrow_screen_shows_one_at_a_time_and_nothing_is_lost_by_switching(
    page: Page, slow_chat_gateway: Gateway
) -> None:
    page.set_viewport_size(NARROW)
    visit(page, slow_chat_gateway)
    ask_for_sixty(page)
    page.fill("#message", "un")
    page.keyboard.press("Enter")
    go_to(page, "completion")
    expect(page.locator("#chat")).to_be_hidden()
    page.fill("#prompt", "Phileas")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#answer .token").nth(2)).to_be_attached()
    page.set_viewport_size(WIDE)
    expect(page.locator("main > section:visible h2")).to_have_text(["Chat", "Completion"])
    page.set_viewport_size(NARROW)
    expect(page.locator("main > section:visible h2")).to_have_text(["Completion"])  # which was used last
    go_to(page, "workers")
    go_to(page, "chat")
    expect(page.locator("nav a[aria-current]")).to_have_text("Chat")

    assert ended(page, "#messages").endswith("[length]")
    go_to(page, "completion")
    assert ended(page).endswith("[length]")


def test_a_model_that_cannot_chat_says_so_and_leaves_the_room_to_the_completion(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)

    expect(page.locator("#chat-cannot")).to_have_text(
        "The model base has no chat template: it goes on with texts, and does not chat."
    )
    expect(page.locator("#say")).to_be_hidden()
    chat, completion = (page.locator(each).bounding_box() for each in ("#chat", "#completion"))
    assert chat is not None
    assert completion is not None
    assert chat["width"] * 2 < completion["width"]


def test_a_model_that_comes_later_is_offered_without_a_reload(
    page: Page, gateway: Gateway, server: redis.Redis, chat_served: ServedModel
) -> None:
    visit(page, gateway)
    expect(page.locator("#say")).to_be_hidden()
    with served_chats(server, replace(chat_served, card=replace(chat_served.card, name="other"))):
        expect(page.locator("#model option")).to_have_text(["base", "other"])
        expect(page.locator("#model")).to_have_value("base")
        page.select_option("#model", "other")
        expect(page.locator("#say")).to_be_visible()


def test_what_is_being_typed_outlives_a_reload(page: Page, chat_gateway: Gateway) -> None:
    visit(page, chat_gateway)
    page.fill("#message", "un deux")
    page.fill("#prompt", "Phileas")
    page.reload()

    expect(page.locator("#message")).to_have_value("un deux")
    expect(page.locator("#prompt")).to_have_value("Phileas")


def test_an_answer_that_waits_in_the_queue_is_stopped_before_its_first_token(
    page: Page, shared_gateway: Gateway, start_worker: Callable[..., Worker], server: redis.Redis
) -> None:
    start_worker(max_batch=1, engine=slower_engine)
    visit(page, shared_gateway)
    long = GenerationRequest((5, 6), max_new_tokens=120)
    *_, before = [enqueue(server, long, Submission()) for _ in range(6)]
    with page.expect_response("**/v1/completions") as begun:
        go_on(page, "Phileas", max_tokens=100)
    expect(page.locator("#answer .end")).to_have_text("[waiting …]")
    job_id = begun.value.headers["x-completion-id"].removeprefix("cmpl-")
    page.click("#completion .stop")

    expect(page.locator("#answer .end")).to_have_text("[stopped]")
    end = end_of(server, job_id)
    assert end is not None
    assert end.reason == "cancelled"
    assert end_of(server, before) is None


def test_stop_is_kept_until_a_gateway_answers_again(page: Page, own_service: OwnService, tmp_path: Path) -> None:
    own_service.fleet.start_and_wait()
    with Gateway(own_service.server.url, tmp_path / "log") as gateway:
        visit(page, gateway)
        go_on(page, "Phileas Fogg", max_tokens=110)
        expect(page.locator("#answer .token").nth(2)).to_be_attached()
        (key,) = own_service.connection.scan_iter(match=f"{keys.token_stream('')}*")
        job_id = key.decode().removeprefix(keys.token_stream(""))
        own_service.holder(job_id).kill()
        port = gateway.url.rpartition(":")[2]
        gateway.kill()
    page.click("#completion .stop")
    expect(page.locator("#notice")).to_have_text(re.compile("stopped as soon as the gateway answers|asked for again"))
    expect(page.locator("#answer .end")).to_have_text("[stopping …]")
    with Gateway(own_service.server.url, tmp_path / "again", "--port", port):
        wait_until(lambda: own_service.connection.exists(keys.cancel_flag(job_id)))
        own_service.fleet.start_and_wait()

        expect(page.locator("#answer .end")).to_have_text("[stopped]")


def test_a_new_chat_begins_at_once_whether_or_not_the_old_answer_has_stopped(
    page: Page, slow_chat_gateway: Gateway
) -> None:
    visit(page, slow_chat_gateway)
    page.route("**/cancel", lambda route: route.abort())
    page.fill("#message", "un")
    page.keyboard.press("Enter")
    expect(page.locator("#messages .token").first).to_be_attached()
    page.click("#chat .clear")
    page.fill("[name=max_tokens]", "3")
    page.fill("#message", "deux")
    page.keyboard.press("Enter")

    assert ended(page, "#messages").endswith("[length]")
    expect(page.locator("#messages li b")).to_have_text(["You", "Model"])


def test_a_message_that_is_refused_comes_back_and_is_no_part_of_the_conversation(
    context: BrowserContext, chat_gateway: Gateway
) -> None:
    page = context.new_page()
    visit(page, chat_gateway)
    page.fill("[name=max_tokens]", "3")
    page.fill("#message", "un " * 400)
    page.keyboard.press("Enter")
    expect(page.locator("#messages .failed")).to_have_text(re.compile("prompt must hold"))
    expect(page.locator("#message")).to_have_value(("un " * 400).strip())
    page.reload()
    expect(page.locator("#messages .failed")).to_have_text(re.compile("prompt must hold"))
    expect(page.locator("#model option")).to_have_text(["base"])
    page.fill("#message", "deux")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")

    body: Any = sent.value.post_data_json
    assert body["messages"] == [{"role": "user", "content": "deux"}]
    ended(page, "#messages")


def test_a_tab_without_room_says_what_that_costs_and_answers_all_the_same(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('full'); }; }")
    go_on(page, "Phileas", max_tokens=3)

    assert ended(page).endswith("[length]")
    expect(page.locator("#notice.failed")).to_have_text(re.compile("no room.*The answers stay under Jobs"))


def test_probabilities_are_read_by_keyboard_and_by_touch(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    go_on(page, "Phileas Fogg", max_tokens=12, temperature=0)
    ended(page)
    told = page.locator("#completion .probable")
    expect(told).to_have_text(re.compile("press ← and →"))
    page.locator("#answer").focus()
    page.keyboard.press("ArrowRight")
    first = told.inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#answer .token").nth(1)).to_have_class("token marked")
    assert told.inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert told.inner_text() == first
    page.keyboard.press("Escape")
    expect(told).to_have_text(re.compile("press ← and →"))
    page.locator("#answer .token:not(:empty)").last.dispatch_event("click")  # what a touch makes

    expect(told.locator("b")).to_have_text(re.compile(r'".*" .*%'))


@pytest.mark.parametrize("view", ["completion", "chat"])
def test_the_end_of_a_long_answer_stays_in_sight_unless_one_reads_further_up(
    page: Page, slow_chat_gateway: Gateway, view: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 420})
    visit(page, slow_chat_gateway)
    field, place = {"completion": ("#prompt", "#answer"), "chat": ("#message", "#messages")}[view]
    ask_for_sixty(page)
    page.fill(field, "Phileas\n" * 9)
    page.locator(field).press("Control+Enter")
    expect(page.locator(f"{place} .token").nth(3)).to_be_attached()
    far = f"document.querySelector('{place}').scrollHeight - document.querySelector('{place}').clientHeight"
    assert page.evaluate(far) > 40
    wait_until(lambda: page.evaluate(f"{far} - document.querySelector('{place}').scrollTop") < 40)
    page.locator(place).evaluate("place => { place.scrollTop = 0; }")
    seen = page.locator(f"{place} .token").count()
    expect(page.locator(f"{place} .token").nth(seen + 5)).to_be_attached()

    assert page.locator(place).evaluate("place => place.scrollTop") == 0
