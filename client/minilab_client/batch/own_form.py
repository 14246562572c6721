"""A line as ``minilab-client submit`` names things, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.line import Content, Line
from minilab_gen.errors import RequestError
from minilab_gen.model_settings import own_ends
from minilab_gen.protocol.results import Answer, logprobs_to_json
from minilab_gen.request import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_MAX_NEW_TOKENS,
    GIVEN_FIELDS,
    check_n,
    given_settings,
    shown,
)
from minilab_gen.text.chat import EXTRAS, Conversation

_PROMPTS: Final = ("prompt", "chat", "ids")
"""What the model is to go on with, in one of three forms."""

_FIELDS: Final = ("custom_id", *_PROMPTS, *EXTRAS, *GIVEN_FIELDS, "n")


def read(fields: dict[str, Any], model: AskedModel) -> Content:
    """What the line asks for. Raises RequestError."""
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise RequestError(f"a line may have the fields {', '.join(_FIELDS)}, got {shown(unknown[0])}")
    given = given_settings({name: fields[name] for name in GIVEN_FIELDS if name in fields})
    _check_prompts(fields)
    n = check_n(1 if fields.get("n") is None else fields["n"])
    if "chat" in fields:
        said = Conversation.of(fields["chat"]).with_extras(*(fields.get(name) for name in EXTRAS))
        prompt, chat_ends = model.chat(said)
        default = {"prompt": prompt, "max_new_tokens": DEFAULT_CHAT_TOKENS, "stop_ids": own_ends(given, chat_ends)}
        written = model.chat_as_written(said, fields.get("stop_ids"), given.get("ignore_eos"))
        return Content({**default, **model.request_fields(given)}, written, n)
    prompt = model.ids_of("prompt", fields["prompt"]) if "prompt" in fields else _ids(fields["ids"])
    ends = own_ends(given, model.card.stop_ids)
    default = {"prompt": prompt, "max_new_tokens": DEFAULT_MAX_NEW_TOKENS, "stop_ids": ends}
    return Content({**default, **model.request_fields(given)}, n=n)


def answer(given: Sequence[tuple[Line, str, Answer]], model: AskedModel) -> dict[str, Any]:
    """What is written about a line, from the job and the answer of each choice, of which it may have one alone."""
    line, job_id, first = given[0]
    if line.n == 1:
        answered = _choice(*given[0])
    else:
        choices = [{"index": index, **_choice(*each)} for index, each in enumerate(given)]
        answered = {
            "job_id": job_id,
            "seed": line.seed,
            "choices": choices,
            "tokens": sum(answer.end.tokens for _, _, answer in given),
            "prompt_tokens": first.end.prompt_tokens,
        }
    named = {"model": model.card.name, "fingerprint": first.fingerprint}
    return {"custom_id": line.custom_id, **answered, **named}


def _choice(line: Line, job_id: str, given: Answer) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "ids": list(given.ids),
        "seed": line.seed,
        **given.end.to_json(),
        "text": given.text,
        **logprobs_to_json(given),
    }


def _check_prompts(fields: dict[str, Any]) -> None:
    given = [name for name in _PROMPTS if name in fields]
    if len(given) != 1:
        came = " and ".join(given) or "none"
        raise RequestError(f"a line must have one of {', '.join(_PROMPTS)}, got {came}")
    if extra := [name for name in EXTRAS if name in fields and "chat" not in fields]:
        raise RequestError(f"{extra[0]} goes with chat, got it with {given[0]}")


def _ids(given: object) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise RequestError(f"ids must be a list of token ids, got {shown(given)}")
    return tuple(given)
