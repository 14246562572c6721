"""What tests of the page share: a browser, and what one does there. It must not hold a test."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from gateway.gateway_process import Gateway

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="SKIPPED: no chromium here; apt-get install chromium")

LIMIT_MS = 120_000
WIDE = {"chat": "write", "completion": "write"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(LIMIT_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page whose console tells of lost connections alone: nothing else fails, and nothing is forbidden."""
    expect.set_options(timeout=LIMIT_MS)
    opened, said = context.new_page(), []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    assert [text for text in said if not text.startswith("Failed to load resource: net::ERR_")] == []


def visit(page: Page, gateway: Gateway) -> None:
    page.goto(gateway.url)
    expect(page.locator("#model option")).to_have_text(["base"])


def go_to(page: Page, view: str) -> None:
    """Show a view; on a wide screen, a chat and a completion stand in one."""
    page.click(f"nav a[data-view={view}]:visible, nav a[data-view={WIDE.get(view, view)}]:visible")
    expect(page.locator(f"#{view}")).to_be_visible()


def go_on(page: Page, prompt: str, **settings: object) -> None:
    go_to(page, "completion")
    page.fill("#prompt", prompt)
    for name, value in settings.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#go-on button[type=submit]")


def ended(page: Page, place: str = "#answer") -> str:
    """What is shown once the answer is whole."""
    expect(page.locator(f"{place} .end").last).to_have_text(re.compile(r"\[[a-z]+\]"))
    return page.inner_text(place)
