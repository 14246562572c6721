"""The page for everyone: axe-core finds nothing serious, in light, dark and on a narrow screen."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from minilab_worker.worker import Worker
from playwright.sync_api import Browser, Page, expect
from support.engines import slow_engine

from gateway.browsing import LIMIT_MS, ended, go_on, go_to, needs_browser, visit
from gateway.gateway_process import Gateway
from minilab_gen.protocol.submission import Submission, enqueue
from minilab_gen.request import GenerationRequest

AXE = "axe-core@4.10.3"
NPM = shutil.which("npm")
pytestmark = [
    needs_browser,
    pytest.mark.skipif(NPM is None, reason="SKIPPED, NOTHING WAS CHECKED: no npm here to fetch axe-core with"),
]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of axe-core; AXE_CORE names a file of it, where npm's registry cannot be reached."""
    if given := os.environ.get("AXE_CORE"):
        return Path(given).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    command = [NPM or "npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", AXE]
    got = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert got.returncode == 0, f"npm cannot fetch {AXE}; AXE_CORE=FILE names axe.min.js\n{got.stderr}"
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, axe: str) -> list[str]:
    """What is serious or critical in what is shown now."""
    page.evaluate(axe)
    found: Any = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {node['html']}: {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)])
def test_axe_finds_nothing_serious_in_any_view(
    browser: Browser,
    axe: str,
    shared_gateway: Gateway,
    start_worker: Callable[..., Worker],
    server: redis.Redis,
    scheme: Any,
    width: int,
) -> None:
    start_worker(max_batch=1, engine=slow_engine)
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.route("**/v1/batches*", lambda route: route.fulfill(json={"data": BATCHES}))
    visit(page, shared_gateway)
    page.locator("#settings-panel").evaluate("panel => { panel.open = true; }")
    for folded in page.locator("#settings details").all():
        folded.evaluate("folded => { folded.open = true; }")
    empty = [found for view in ("jobs", "chat") for found in shown(page, view, axe)]
    go_on(page, "Phileas Fogg", max_tokens=5)
    ended(page)
    for _ in range(3):
        enqueue(server, GenerationRequest((5, 6), max_new_tokens=120), Submission())
    go_to(page, "jobs")
    page.locator("#jobs .open").last.click()
    ended(page, "#opened")
    expect(page.locator("#jobs .started")).not_to_have_count(0)
    found = [each for view in ("jobs", "completion", "batches", "workers") for each in shown(page, view, axe)]
    context.close()

    assert empty + found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_where_a_chat_stands_beside_a_completion(
    browser: Browser, axe: str, chat_gateway: Gateway, scheme: Any
) -> None:
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    visit(page, chat_gateway)
    page.fill("#message", "un")
    go_on(page, "Phileas Fogg", max_tokens=5)
    page.locator("#message").press("Enter")
    ended(page)
    ended(page, "#messages")
    page.locator("#answer").press("ArrowRight")
    expect(page.locator("#completion .probable b")).to_be_visible()
    found = violations(page, axe)
    context.close()

    assert found == []


def shown(page: Page, view: str, axe: str) -> list[str]:
    go_to(page, view)
    if view in ("batches", "workers"):
        expect(page.locator(f"#{view} li, #{view} tbody tr").first).to_be_visible()
    return [f"{view}: {each}" for each in violations(page, axe)]


BATCHES = [
    {
        "id": f"batch_{status}",
        "status": status,
        "endpoint": "/v1/completions",
        "created_at": 1_700_000_000,
        "output_file_id": "file-1",
        "error_file_id": "file-2",
        "request_counts": {"total": 9, "completed": 5, "failed": 1},
        "errors": {"data": [{"line": 3, "message": "no JSON"}]} if status == "failed" else None,
        "metadata": {"file": "requests.jsonl"},
    }
    for status in ("validating", "in_progress", "finalizing", "completed", "failed", "cancelled")
]
