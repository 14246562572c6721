"""A line of OpenAI's batch format for completions, and its answer.

Where it has a default of its own, that one applies. What the service does not have is accepted where it says "off" and
refused by name where it would change the answer.
"""

from __future__ import annotations

import json
from typing import Any, Final

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.line import Content, Line, is_whole
from minilab_client.batch.stop_texts import cut
from minilab_gen.errors import RequestError
from minilab_gen.protocol import keys
from minilab_gen.protocol.results import Answer
from minilab_gen.request import SETTING_FIELDS, shown

MARKS: Final = frozenset({"method", "url", "body"})
"""A line with any of these fields is of this form."""

URL: Final = "/v1/completions"
DEFAULT_MAX_TOKENS: Final = 16
DEFAULT_TEMPERATURE: Final = 1.0
MOST_STOP_TEXTS: Final = 4

_OUR_NAMES: Final = {"max_new_tokens": "max_tokens", "stop_ids": "stop_token_ids"}
"""What has another name here, or in vLLM, which has added a few."""

_SETTINGS: Final = {_OUR_NAMES.get(name, name): name for name in SETTING_FIELDS}
"""Names here: ours."""

_FIELDS: Final = ("prompt", *_SETTINGS, "stop", "model")
_OFF: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "stream": (False,),
    "logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "suffix": (),
}
"""Fields that may only say that nothing is wanted: with one of these values, or null."""

_IGNORED: Final = ("user",)
"""Fields that change no answer there, either."""


def read(fields: dict[str, Any], model: AskedModel) -> Content:
    """What the line asks for. Raises RequestError."""
    for name in fields:
        if name not in MARKS | {"custom_id"}:
            raise RequestError(f"a line with a body may have custom_id, method, url and body, got {shown(name)}")
    for name, only in (("method", "POST"), ("url", URL)):
        if fields.get(name) != only:
            raise RequestError(f"{name} must be {only}, got {shown(fields.get(name))}")
    body = fields.get("body")
    if not isinstance(body, dict):
        raise RequestError(f"body must be an object, got {shown(body)}")
    _refuse_what_we_lack(body, model)
    given = {name: value for name, value in body.items() if value is not None}  # null asks for the default
    stop_texts = _stop_texts(given.get("stop", ()))
    payload = {
        "max_new_tokens": DEFAULT_MAX_TOKENS,
        "temperature": DEFAULT_TEMPERATURE,
        **{ours: given[name] for name, ours in _SETTINGS.items() if name in given},
        "prompt": _prompt(given, model),
        "stop_ids": _stop_ids(given.get("stop_token_ids", []), stop_texts, model),
    }
    return Content(payload, stop_texts)


def answer(line: Line, job_id: str, given: Answer, model: AskedModel) -> dict[str, Any]:
    """What is written about the line: OpenAI's fields, and of ours ``token_ids`` and ``seed``."""
    kept = cut(given, line.stop_texts, model.tokenizer, line.request.prompt)
    prompt_tokens, tokens = given.end.prompt_tokens, len(kept.ids)
    choice = {
        "index": 0,
        "text": kept.text,
        "finish_reason": "stop" if kept.was_cut or given.end.reason == "stop" else "length",
        "logprobs": None,
        "token_ids": list(kept.ids),
    }
    body = {
        "id": f"cmpl-{line.digest}",
        "object": "text_completion",
        "created": int(given.recorded_at),
        "model": model.card.name,
        "system_fingerprint": given.fingerprint,
        "choices": [choice],
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


def in_their_words(refusal: RequestError) -> RequestError:
    """A refusal of the service with the names that fields have here."""
    text = str(refusal)
    for ours, theirs in _OUR_NAMES.items():
        text = text.replace(ours, theirs)
    return RequestError(text)


def _refuse_what_we_lack(body: dict[str, Any], model: AskedModel) -> None:
    for name, value in body.items():
        if name in _FIELDS or name in _IGNORED:
            continue
        if name not in _OFF:
            raise RequestError(f"body may have the fields {', '.join(_FIELDS)}, got {shown(name)}")
        if value is not None and not any(_is_same(value, off) for off in _OFF[name]):
            off = " or ".join(map(json.dumps, (*_OFF[name], None)))
            raise RequestError(f"{name} is not offered here and must be {off}, got {shown(value)}")
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


def _stop_texts(given: object) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or len(texts) > MOST_STOP_TEXTS:
        raise RequestError(f"stop must be a text or up to {MOST_STOP_TEXTS} of them, got {shown(given)}")
    for text in texts:
        if not isinstance(text, str) or not text or not is_whole(text):
            raise RequestError(f"stop must hold texts of at least one whole character, got {shown(text)}")
    return tuple(texts)


def _stop_ids(given: object, stop_texts: tuple[str, ...], model: AskedModel) -> tuple[int, ...]:
    """The model's own, those asked for, and of the stop texts those that are one token: they end the job at once."""
    if not isinstance(given, list):
        raise RequestError(f"stop_token_ids must be a list of token ids, got {shown(given)}")
    of_texts = [found for text in stop_texts if (found := model.stop_id_of(text)) is not None]
    return (*model.card.stop_ids, *given, *of_texts)


def _is_same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)  # to Python, true is 1
