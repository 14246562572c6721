"""A line of OpenAI's batch format for completions, plain or in a chat, and its answer.

Where it has a default of its own, that one applies. What the service does not have is accepted where it says "off" and
refused by name where it would change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.line import Content, Line
from minilab_client.batch.vllm_names import VLLM_FORMS, with_form
from minilab_gen.errors import RequestError
from minilab_gen.model_settings import own_ends
from minilab_gen.protocol import keys
from minilab_gen.protocol.results import Answer
from minilab_gen.request import DEFAULT_CHAT_TOKENS, GIVEN_FIELDS, check_n, shown
from minilab_gen.text import openai_logprobs
from minilab_gen.text.chat import EXTRAS, Conversation
from minilab_gen.text.tokenizer import Tokenizer

MARKS: Final = frozenset({"method", "url", "body"})
"""A line with any of these fields is of this form."""

DEFAULT_MAX_TOKENS: Final = 16
"""New tokens of a completion; an answer in a chat has our own default, where OpenAI sets no bound."""
DEFAULT_TEMPERATURE: Final = 1.0

_OUR_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "stop_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
}
"""What has another name here, or in vLLM, which has added a few."""

_SETTINGS: Final = {_OUR_NAMES.get(name, name): name for name in GIVEN_FIELDS}
"""Names here: ours."""

_ALL_TOKENS: Final = (0, -1)
"""Values of ``top_k`` that keep all tokens in vLLM, whose default they are or were."""

_OFF: Final[dict[str, tuple[object, ...]]] = {
    "stream": (False,),
}


@dataclass(frozen=True, slots=True)
class Route:
    """What may stand in the body of a line for one URL."""

    url: str
    settings: Mapping[str, str]
    """Names here: ours."""
    others: tuple[str, ...]
    """Fields besides."""
    off: Mapping[str, tuple[object, ...]]
    """Fields that may only say that nothing is wanted: with one of these values, or null."""
    ignored: tuple[str, ...]
    """Fields that change no answer there, either."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.others, *self.settings, "model")


COMPLETIONS: Final = Route(
    "/v1/completions",
    _SETTINGS,
    ("prompt", "n", "echo", *VLLM_FORMS),
    {**_OFF, "best_of": (1,), "suffix": ()},
    ("user",),
)
CHAT_COMPLETIONS: Final = Route(
    "/v1/chat/completions",
    {**_SETTINGS, "max_completion_tokens": "max_new_tokens"},
    ("messages", *EXTRAS, "n", "top_logprobs", *VLLM_FORMS),
    {
        **_OFF,
        "tool_choice": ("auto",),
        "parallel_tool_calls": (True,),
    },
    ("user", "metadata", "store"),
)
_ROUTES: Final = {route.url: route for route in (COMPLETIONS, CHAT_COMPLETIONS)}


def read(fields: dict[str, Any], model: AskedModel) -> Content:
    """What the line asks for. Raises RequestError."""
    route, body = _checked(fields, model)
    given = with_form(body)
    if any(_is_same(given.get("top_k"), all_tokens) for all_tokens in _ALL_TOKENS):
        del given["top_k"]
    settings = {ours: given[name] for name, ours in route.settings.items() if name in given}
    settings = {"temperature": DEFAULT_TEMPERATURE, **model.request_fields(settings)}
    n = check_n(given.get("n", 1))
    if route is COMPLETIONS:
        ends = _stop_ids(own_ends(given, model.card.stop_ids), given)
        prompt = _prompt(given, model)
        payload = {"max_new_tokens": DEFAULT_MAX_TOKENS, **settings, "prompt": prompt, "stop_ids": ends}
        echo = _echo(given)
        if echo:  # the prompt is scored like the answer, and may be all that is asked
            payload.setdefault("prompt_logprobs", settings.get("logprobs", 0))
        return Content(payload, n=n, echo=echo)
    settings = openai_logprobs.settings_of_chat(settings, given)
    said = Conversation.of(_messages(given)).with_extras(*(given.get(name) for name in EXTRAS))
    prompt, chat_ends = model.chat(said)
    ends = _stop_ids(own_ends(given, chat_ends), given)
    payload = {"max_new_tokens": DEFAULT_CHAT_TOKENS, **settings, "prompt": prompt, "stop_ids": ends}
    written = model.chat_as_written(said, given.get("stop_token_ids"), given.get("ignore_eos"))
    return Content(payload, {**written, "url": route.url}, n)


def answer(given: Sequence[tuple[Line, str, Answer]], model: AskedModel) -> dict[str, Any]:
    """What is written about a line, from the job and the answer of each choice.

    OpenAI's fields, ``stop_reason`` of vLLM, ``token_ids`` and ``seed`` of ours.
    """
    line, job_id, first = given[0]
    prompt_tokens, tokens = first.end.prompt_tokens, sum(len(answer.ids) for _, _, answer in given)
    chats = line.form == "openai-chat"
    body = {
        "id": f"{'chatcmpl' if chats else 'cmpl'}-{line.digest}",
        "object": "chat.completion" if chats else "text_completion",
        "created": int(max(answer.recorded_at for _, _, answer in given)),
        "model": model.card.name,
        "system_fingerprint": first.fingerprint,
        "choices": [_choice(index, of, answer, model.tokenizer) for index, (of, _, answer) in enumerate(given)],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
        },
        "seed": line.seed,
    }
    return {
        "id": f"batch_req_{line.digest}",
        "custom_id": line.custom_id,
        "response": {"status_code": 200, "request_id": job_id, "body": body},
        "error": None,
    }


def _choice(index: int, line: Line, given: Answer, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.decode(line.request.prompt) + given.text if line.echo else given.text
    is_said = line.form == "openai-chat"
    choice: dict[str, Any] = {
        "index": index,
        **({"message": {"role": "assistant", "content": text}} if is_said else {"text": text}),
        "finish_reason": "stop" if given.end.reason == "stop" else "length",
        **({} if given.end.stop_text is None else {"stop_reason": given.end.stop_text}),
        **({} if given.end.complete is None else {"complete": given.end.complete}),
        "logprobs": _logprobs(line, given, text, tokenizer),
        "token_ids": list(given.ids),
    }
    if given.prompt_logprobs is not None and not line.echo:
        choice["prompt_logprobs"] = openai_logprobs.of_prompt(given.prompt_logprobs, tokenizer)
    return choice


def _logprobs(line: Line, given: Answer, text: str, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Those of the text, in the form of the line; None where none were asked for."""
    if given.logprobs is None:
        return None
    if line.form == "openai-chat":
        return openai_logprobs.of_chat(given.ids, given.logprobs, tokenizer)
    prompt = line.request.prompt
    if line.echo:
        ids, listed = (*prompt, *given.ids), (*(given.prompt_logprobs or ()), *given.logprobs)
        offsets = openai_logprobs.text_offsets(ids, text, tokenizer.decoder())
        return openai_logprobs.of_completion(ids, listed, offsets, tokenizer)
    offsets = openai_logprobs.text_offsets(given.ids, text, tokenizer.decoder(prompt))
    return openai_logprobs.of_completion(given.ids, given.logprobs, offsets, tokenizer)


def in_their_words(refusal: RequestError) -> RequestError:
    """A refusal of the service with the names that fields have here."""
    text = str(refusal)
    for ours, theirs in _OUR_NAMES.items():
        text = text.replace(ours, theirs)
    return RequestError(text)


def _checked(fields: dict[str, Any], model: AskedModel) -> tuple[Route, dict[str, Any]]:
    """The route that the line takes and its body. Raises RequestError for what would not be done."""
    for name in fields:
        if name not in MARKS | {"custom_id"}:
            raise RequestError(f"a line with a body may have custom_id, method, url and body, got {shown(name)}")
    if fields.get("method") != "POST":
        raise RequestError(f"method must be POST, got {shown(fields.get('method'))}")
    url, body = fields.get("url"), fields.get("body")
    route = _ROUTES.get(url) if isinstance(url, str) else None
    if route is None:
        raise RequestError(f"url must be {' or '.join(_ROUTES)}, got {shown(url)}")
    if not isinstance(body, dict):
        raise RequestError(f"body must be an object, got {shown(body)}")
    _refuse_what_we_lack(route, body, model)
    return route, body


def _refuse_what_we_lack(route: Route, body: dict[str, Any], model: AskedModel) -> None:
    for name, value in body.items():
        if name in route.fields or name in route.ignored:
            continue
        if name not in route.off:
            raise RequestError(f"body may have the fields {', '.join(route.fields)}, got {shown(name)}")
        if value is not None and not any(_is_same(value, off) for off in route.off[name]):
            off = " or ".join(map(json.dumps, (*route.off[name], None)))
            raise RequestError(f"{name} is not offered here and must be {off}, got {shown(value)}")
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        raise RequestError("body must have one of max_tokens and max_completion_tokens, got both")
    asked = body.get("model")
    if asked is not None and (not isinstance(asked, str) or keys.without_owner(asked) != model.card.name):
        raise RequestError(f"model must be {model.card.name}, which --model names, got {shown(body['model'])}")


def _prompt(body: dict[str, Any], model: AskedModel) -> tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not any(isinstance(part, str | list) for part in prompt):
        return tuple(prompt)
    if not isinstance(prompt, str):
        raise RequestError(f"prompt must be one text or one list of token ids, got {shown(prompt)}")
    return model.ids_of("prompt", prompt)


def _echo(body: dict[str, Any]) -> bool:
    echo = body.get("echo", False)
    if not isinstance(echo, bool):
        raise RequestError(f"echo must be true or false, got {shown(echo)}")
    return echo


def _messages(body: dict[str, Any]) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RequestError(f"messages must be a list of messages, got {shown(messages)}")
    return messages


def _stop_ids(own: Sequence[int], body: dict[str, Any]) -> tuple[int, ...]:
    """The model's own, and those asked for."""
    given = body.get("stop_token_ids", [])
    if not isinstance(given, list):
        raise RequestError(f"stop_token_ids must be a list of token ids, got {shown(given)}")
    return (*own, *given)


def _is_same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)  # to Python, true is 1
