"""Makes docs/page*.png of the real page: `python docs/page_pictures.py` (needs chromium and the development tools).

It starts a private Redis, a gateway and a worker of the shipped model, and ends them. The model has a chat template
here, so that a chat can be seen: lines of a dialogue, as in the novels that it was trained on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect, sync_playwright

from minilab_gen import submit

HERE: Final = Path(__file__).parent
PORT: Final = 18437
LOAD_SECONDS: Final = 40
"""In which jobs come while the workers are pictured: the plot has a point for each second."""

TEMPLATE: Final = "{% for message in messages %}— {{ message.content }}\n{% endfor %}— "


def main(folder: Path) -> None:
    """Write the pictures into a folder."""
    with tempfile.TemporaryDirectory(prefix="ml-") as home:
        os.environ |= {"MINILAB_HOME": home}
        model = Path(home) / "base"
        shutil.copytree(HERE.parent / "minilab_gen" / "base", model)
        config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
        (model / "tokenizer_config.json").write_text(
            json.dumps({**config, "chat_template": TEMPLATE}), encoding="utf-8"
        )
        command = [sys.executable, "-m", "minilab_gateway", "--port", str(PORT), "--with-worker", "--model", str(model)]
        gateway = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            with sync_playwright() as tools:
                chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
                with closing(tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])) as browser:
                    take(browser, folder)
        finally:
            gateway.terminate()
            gateway.wait()


def take(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page.set_default_timeout(120_000)
    visit(page)
    page.fill("[name=max_tokens]", "90")
    page.fill("[name=temperature]", "0.8")
    page.fill("[name=seed]", "7")
    page.fill("#prompt", "Phileas Fogg")
    page.click("#go-on button[type=submit]")
    page.fill("#message", "Où est Phileas Fogg ?")
    page.click("#say button[type=submit]")
    for answer in ("#answer", "#messages"):
        expect(page.locator(f"{answer} .end")).to_have_text(re.compile(r"\[[a-z]+\]"), timeout=120_000)
    page.locator("#answer .token").nth(4).hover()
    page.screenshot(path=folder / "page.png")
    page.emulate_media(color_scheme="dark")
    page.click("nav a[data-view=workers]")
    for second in range(LOAD_SECONDS):
        for n in range(3 + 4 * second % 17):
            submit(f"Le voyage {n}", max_new_tokens=120, temperature=0.8)
        time.sleep(1)
    page.screenshot(path=folder / "page-dark.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 720})
    page.click("nav a[data-view=jobs]")
    expect(page.locator("#jobs .rows li").first).to_be_visible()
    page.screenshot(path=folder / "page-narrow.png")
    if folder != HERE:
        every(page, folder)


def every(page: Page, folder: Path) -> None:
    """All views, to look at."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width in (360, 1280, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            for link in page.locator("nav a:visible").all():
                link.click()
                view = link.get_attribute("data-view")
                time.sleep(0.6)
                page.screenshot(path=folder / f"{view}-{scheme}-{width}.png", full_page=True)


def visit(page: Page) -> None:
    """Open the page as soon as the gateway answers, and wait for the model."""
    until = time.monotonic() + 60
    while True:
        try:
            page.goto(f"http://127.0.0.1:{PORT}/")
            break
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    expect(page.locator("#model option")).to_have_text(["base"], timeout=120_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HERE)
