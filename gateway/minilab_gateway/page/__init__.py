"""The page at ``/``: static files without a build step, which speak to the routes like any other client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

_FOLDER: Final = Path(__file__).parent
_KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_HEADERS: Final = MappingProxyType(
    {
        # Nothing but these files is loaded, nothing runs that stands in the page itself, and nobody frames it.
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)

FILES: Final = tuple(sorted(file.name for file in _FOLDER.iterdir() if file.suffix in _KINDS))

PATHS: Final = frozenset({"/", *(f"/{name}" for name in FILES)})
"""What is answered without a key: the page asks for one, and shows nothing before."""


def page_router() -> APIRouter:
    """The files."""
    router = APIRouter(include_in_schema=False)
    for name in FILES:
        router.add_api_route("/" if name == "index.html" else f"/{name}", _answering(name), methods=["GET", "HEAD"])
    return router


def _answering(name: str) -> Callable[[], Awaitable[Response]]:
    content = (_FOLDER / name).read_bytes()
    kind = f"{_KINDS[Path(name).suffix]}; charset=utf-8"

    async def answer() -> Response:
        return Response(content, headers=dict(_HEADERS), media_type=kind)

    return answer
