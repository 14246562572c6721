"""A line as ``minilab-client submit`` names things, and its answer. It must not know OpenAI's form."""

from __future__ import annotations

from typing import Any, Final

from minilab_client.batch.asked_model import AskedModel
from minilab_client.batch.line import Asked, Line
from minilab_gen.errors import RequestError
from minilab_gen.protocol.results import Answer
from minilab_gen.request import DEFAULT_MAX_NEW_TOKENS, shown

_FIELDS: Final = (
    *("custom_id", "prompt", "ids"),
    *("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_ids"),
)


def read(fields: dict[str, Any], model: AskedModel) -> Asked:
    """What the line asks for. Raises RequestError."""
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise RequestError(f"a line may have the fields {', '.join(_FIELDS)}, got {shown(unknown[0])}")
    stop_ids = fields.get("stop_ids")
    return Asked(
        prompt=_prompt(fields, model),
        max_new_tokens=fields.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS),
        temperature=fields.get("temperature", 0.0),
        top_k=fields.get("top_k"),
        top_p=fields.get("top_p"),
        seed=fields.get("seed"),
        stop_ids=model.card.stop_ids if stop_ids is None else stop_ids,
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


def _prompt(fields: dict[str, Any], model: AskedModel) -> tuple[int, ...]:
    if ("prompt" in fields) == ("ids" in fields):
        raise RequestError(f"a line must have either prompt or ids, got {'both' if 'prompt' in fields else 'neither'}")
    if "prompt" in fields:
        return model.ids_of("prompt", fields["prompt"])
    if not isinstance(fields["ids"], list):
        raise RequestError(f"ids must be a list of token ids, got {shown(fields['ids'])}")
    return tuple(fields["ids"])
