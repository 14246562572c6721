"""The page in a real browser: what it shows goes on whatever is reloaded or killed, and text never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from minilab_worker.worker import Worker
from playwright.sync_api import BrowserContext, Page, expect
from support.own_service import OwnService
from support.waiting import wait_until

from gateway.browsing import ended, go_on, go_to, needs_browser, visit
from gateway.conftest import StartGateway
from gateway.gateway_process import Gateway
from gateway.test_access import KEYS, write_keys
from minilab_gen.protocol import keys

pytestmark = needs_browser

MARKUP = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"


def test_a_completion_comes_token_by_token_with_probabilities(page: Page, gateway: Gateway) -> None:
    visit(page, gateway)
    go_on(page, "Phileas Fogg", max_tokens=12, temperature=0)

    text = ended(page)
    expected = gateway.complete(model="base", prompt="Phileas Fogg", max_tokens=12, temperature=0).choices[0].text
    assert text == f"Phileas Fogg{expected} [length]"
    page.locator("#answer .token:not(:empty)").first.hover()
    expect(page.locator("#completion .probable > span > *")).to_have_text([re.compile(r'".*" (< )?[0-9.]+ %')] * 3)


def test_a_reload_in_mid_answer_loses_nothing(page: Page, slow_gateway: Gateway, server: redis.Redis) -> None:
    visit(page, slow_gateway)
    go_on(page, "Phileas Fogg", max_tokens=60, temperature=0.9, seed=4)
    expect(page.locator("#answer .token").nth(5)).to_be_attached()
    page.reload()

    text = ended(page)
    page.reload()
    assert ended(page) == text
    assert len(list(server.scan_iter(match=f"{keys.token_stream('')}*"))) == 1


def test_an_answer_goes_on_through_the_kill_of_its_worker_and_of_its_gateway(
    page: Page, own_service: OwnService, tmp_path: Path
) -> None:
    own_service.fleet.start_and_wait()
    with Gateway(own_service.server.url, tmp_path / "log") as gateway:
        visit(page, gateway)
        go_on(page, "Phileas Fogg", max_tokens=100, temperature=0.9, seed=4)
        expect(page.locator("#answer .token").nth(5)).to_be_attached()
        (key,) = own_service.connection.scan_iter(match=f"{keys.token_stream('')}*")
        job_id = key.decode().removeprefix(keys.token_stream(""))
        own_service.holder(job_id).kill()
        own_service.fleet.start_and_wait()
        own_service.wait_for_token(job_id, 20)
        port = gateway.url.rpartition(":")[2]
        gateway.kill()
    with Gateway(own_service.server.url, tmp_path / "again", "--port", port):
        shown = ended(page)

    text = "".join(event.text for event in own_service.stream(job_id))
    assert shown == f"Phileas Fogg{text} [length]"


def test_a_chat_is_stopped_and_goes_on_with_the_next_message(
    page: Page, slow_chat_gateway: Gateway, server: redis.Redis
) -> None:
    visit(page, slow_chat_gateway)
    expect(page.locator("#chat")).to_be_visible()  # a model that chats is met in a chat
    page.fill("#message", "un")
    page.keyboard.press("Enter")
    expect(page.locator("#messages .token").first).to_be_attached()
    page.click("#chat .stop")
    expect(page.locator("#messages .end").first).to_have_text("[stopped]")
    page.fill("[name=max_tokens]", "4")
    page.fill("#message", "deux")
    page.keyboard.press("Enter")

    ended(page, "#messages")
    expect(page.locator("#messages li b")).to_have_text(["You", "Model", "You", "Model"])
    assert len(list(server.scan_iter(match=f"{keys.token_stream('')}*"))) == 2


def test_text_of_users_models_and_errors_is_never_markup(page: Page, chat_gateway: Gateway) -> None:
    visit(page, chat_gateway)
    go_on(page, MARKUP, max_tokens=3)
    ended(page)
    go_to(page, "chat")
    page.fill("#message", MARKUP)
    page.keyboard.press("Enter")
    ended(page, "#messages")
    page.reload()
    go_to(page, "completion")
    ended(page)
    text = page.inner_text("#answer")
    go_to(page, "chat")
    expect(page.locator("#messages li")).to_have_count(2)

    assert page.title() == "Write · MiniLab Gen"
    assert MARKUP in text
    assert MARKUP in page.inner_text("#messages")
    assert page.locator("main img, main script").count() == 0


def test_the_page_asks_for_a_key_and_keeps_it_no_longer_than_itself(
    context: BrowserContext,
    start_gateway: StartGateway,
    start_worker: Callable[..., Worker],
    tmp_path: Path,
) -> None:
    start_worker()
    gateway = start_gateway("--api-keys", str(write_keys(tmp_path / "keys", "alice")))
    page, key = context.new_page(), KEYS["alice"]
    page.goto(gateway.url)
    expect(page.locator("#key-field")).to_be_visible()
    page.fill("#key", key)
    page.locator("#key").press("Tab")

    expect(page.locator("#model option")).to_have_text(["base"])
    go_on(page, "Phileas Fogg", max_tokens=3)
    ended(page)
    assert key not in page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_a_narrow_screen(page: Page, gateway: Gateway, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 360, "height": 700})
    gateway.complete(model="base", prompt="Phileas Fogg", max_tokens=2, n=3)
    visit(page, gateway)

    for view in ("chat", "completion", "jobs", "batches", "workers"):
        go_to(page, view)
        expect(page.locator("main > section:visible")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view


def test_the_request_is_copied_as_a_command_and_as_a_program_that_run(
    context: BrowserContext, page: Page, gateway: Gateway, capfd: pytest.CaptureFixture[str]
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, gateway)
    go_to(page, "completion")
    page.fill("#prompt", 'L\'homme, "true" or null')
    page.fill("[name=max_tokens]", "3")
    page.fill("[name=temperature]", "0")
    page.fill("[name=top_k]", "5")
    page.click("#completion .copy[data-as=python]")
    wait_until(lambda: "OpenAI" in page.evaluate("navigator.clipboard.readText()"))
    program = page.evaluate("navigator.clipboard.readText()")
    exec(compile(program, "copied", "exec"), {})  # noqa: S102 - that it runs is what is to be seen

    expected = gateway.complete(model="base", prompt='L\'homme, "true" or null', max_tokens=3, temperature=0)
    assert capfd.readouterr().out.rstrip("\n") == expected.choices[0].text
    page.click("#completion .copy[data-as=curl]")
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()").startswith("curl -N http"))
