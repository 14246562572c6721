"""A line as ``minilab-client submit`` names things, and its answer."""

from __future__ import annotations

from typing import Any, Final

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.line import Content, Line
from minilab_gen.errors import RequestError
from minilab_gen.protocol.results import Answer
from minilab_gen.request import DEFAULT_CHAT_TOKENS, DEFAULT_MAX_NEW_TOKENS, SETTING_FIELDS, given_settings, shown

_PROMPTS: Final = ("prompt", "chat", "ids")
"""What the model is to go on with, in one of three forms."""

_FIELDS: Final = ("custom_id", *_PROMPTS, *SETTING_FIELDS)


def read(fields: dict[str, Any], model: AskedModel) -> Content:
    """What the line asks for. Raises RequestError."""
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise RequestError(f"a line may have the fields {', '.join(_FIELDS)}, got {shown(unknown[0])}")
    given = given_settings({name: fields[name] for name in SETTING_FIELDS if name in fields})
    prompt, own_stop_ids = _prompt(fields, model)
    chats = "chat" in fields
    most = DEFAULT_CHAT_TOKENS if chats else DEFAULT_MAX_NEW_TOKENS
    return Content(
        {"prompt": prompt, "max_new_tokens": most, "stop_ids": own_stop_ids, **given},
        written=model.chat_as_written(fields["chat"], fields.get("stop_ids")) if chats else None,
    )


def answer(line: Line, job_id: str, given: Answer, model: AskedModel) -> dict[str, Any]:
    """What is written about the line."""
    return {
        "custom_id": line.custom_id,
        "job_id": job_id,
        "ids": list(given.ids),
        "seed": line.seed,
        **given.end.to_json(),
        "text": given.text,
        "model": model.card.name,
        "fingerprint": given.fingerprint,
    }


def _prompt(fields: dict[str, Any], model: AskedModel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids to go on with, and those that end the answer where the line names none."""
    given = [name for name in _PROMPTS if name in fields]
    if len(given) != 1:
        came = " and ".join(given) or "none"
        raise RequestError(f"a line must have one of {', '.join(_PROMPTS)}, got {came}")
    if "chat" in fields:
        return model.chat(fields["chat"])
    if "prompt" in fields:
        return model.ids_of("prompt", fields["prompt"]), model.card.stop_ids
    if not isinstance(fields["ids"], list):
        raise RequestError(f"ids must be a list of token ids, got {shown(fields['ids'])}")
    return tuple(fields["ids"]), model.card.stop_ids
