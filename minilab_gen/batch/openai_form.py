"""A line of OpenAI's batch format for completions, plain or in a chat, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.line import Content, Form, Line
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import CHAT_COMPLETIONS, COMPLETIONS, Route, read_body
from minilab_gen.openai.objects import Heading, completion_object
from minilab_gen.protocol import keys
from minilab_gen.protocol.results import Answer
from minilab_gen.request import shown

MARKS: Final = frozenset({"method", "url", "body"})
"""A line with any of these fields is of this form."""

ROUTES: Final = {route.url: route for route in (COMPLETIONS, CHAT_COMPLETIONS)}


def read(fields: dict[str, Any], model: AskedModel) -> Content:
    """What the line asks for. Raises RequestError."""
    return read_checked(*_checked(fields, model), model)


def read_checked(route: Route, body: dict[str, Any], model: AskedModel) -> Content:
    """The same for a line whose envelope and model have been looked at."""
    asked = read_body(route, body, model)
    written = None if asked.written is None else {**asked.written, "url": route.url}
    return Content(asked.payload, written, asked.n, asked.echo, asked.calls)


def answer(given: Sequence[tuple[Line, str, Answer]], model: AskedModel) -> dict[str, Any]:
    """What is written about a line, from the job and the answer of each choice."""
    line, job_id, _ = given[0]
    answers = [answer for _, _, answer in given]
    chats = line.form == "openai-chat"
    object_id = f"{'chatcmpl' if chats else 'cmpl'}-{line.digest}"
    created = int(max(answer.recorded_at for answer in answers))
    prompt, name = line.request.prompt, model.card.name
    heading = Heading(object_id, chats, created, name, line.seed, [prompt], model.tokenizer, line.echo, line.calls)
    body = completion_object(heading, answers)
    return {
        "id": f"batch_req_{line.digest}",
        "custom_id": line.custom_id,
        "response": {"status_code": 200, "request_id": job_id, "body": body},
        "error": None,
    }


def envelope(fields: dict[str, Any]) -> tuple[Route, dict[str, Any]]:
    """The route that a line takes and its body. Raises RequestError, which begins with the field that is wrong."""
    for name in fields:
        if name not in MARKS | {"custom_id"}:
            raise RequestError(f"a line with a body may have custom_id, method, url and body, got {shown(name)}")
    if fields.get("method") != "POST":
        raise RequestError(f"method must be POST, got {shown(fields.get('method'))}")
    url, body = fields.get("url"), fields.get("body")
    route = ROUTES.get(url) if isinstance(url, str) else None
    if route is None:
        raise RequestError(f"url must be {' or '.join(ROUTES)}, got {shown(url)}")
    if not isinstance(body, dict):
        raise RequestError(f"body must be an object, got {shown(body)}")
    return route, body


def form_of(route: Route) -> Form:
    return "openai-chat" if route is CHAT_COMPLETIONS else "openai"


def _checked(fields: dict[str, Any], model: AskedModel) -> tuple[Route, dict[str, Any]]:
    """The route that the line takes and its body. Raises RequestError for what would not be done."""
    route, body = envelope(fields)
    asked = body.get("model")
    if asked is not None and (not isinstance(asked, str) or keys.without_owner(asked) != model.card.name):
        raise RequestError(f"model must be {model.card.name}, which --model names, got {shown(asked)}")
    return route, body
