"""The snippets of the pages in docs/http, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PAGES: Final = Path(__file__).parent.parent.parent / "docs" / "http"
_ADDRESS: Final = "http://127.0.0.1:8000"


def snippets(page: str, language: str, address: str = _ADDRESS) -> list[str]:
    """The snippets of a page in one language, for a gateway at another address; at least one."""
    text = (_PAGES / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"docs/http/{page}.md must have a snippet in {language}"
    return [snippet.replace(_ADDRESS, address) for snippet in found]


def without_installing(snippet: str) -> str:
    """The commands of a snippet but those that install, which has been done."""
    lines = snippet.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("pip install", "npm install")))
