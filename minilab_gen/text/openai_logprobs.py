"""Logprobs as OpenAI's API asks for them and gives them, for completions and for chats. It must not know Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown
from minilab_gen.logprobs import MOST_LISTED, PromptLogprobs, TokenLogprobs
from minilab_gen.text.stream_decoder import StreamDecoder
from minilab_gen.text.tokenizer import Tokenizer


def settings_of_chat(settings: Mapping[str, object], body: Mapping[str, object]) -> dict[str, object]:
    """The settings of a chat, which says by ``logprobs`` whether and by ``top_logprobs`` how many. RequestError."""
    asked, count = body.get("logprobs", False), body.get("top_logprobs", 0)
    if not isinstance(asked, bool):
        raise RequestError(f"logprobs must be true or false in a chat, where top_logprobs counts, got {shown(asked)}")
    if type(count) is not int or not 0 <= count <= MOST_LISTED:
        raise RequestError(f"top_logprobs must be an integer from 0 to {MOST_LISTED}, got {shown(count)}")
    rest = {name: value for name, value in settings.items() if name != "logprobs"}
    if asked:
        return {**rest, "logprobs": count}
    if count:
        raise RequestError(f"top_logprobs goes with logprobs true, got {shown(count)} without it")
    return rest


def of_chat(ids: Sequence[int], listed: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """The field ``logprobs`` of a choice in a chat: an entry for each of the ids, of an answer or a part of one."""
    content = [
        {
            **_token(token, one.logprob, tokenizer),
            "top_logprobs": [_token(other, logprob, tokenizer) for other, logprob in one.top],
        }
        for token, one in zip(ids, listed, strict=True)
    ]
    return {"content": content, "refusal": None}


def of_completion(
    ids: Sequence[int], listed: Sequence[TokenLogprobs | None], offsets: Sequence[int], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The same of a completion: lists of equal length, with :func:`text_offsets`.

    A token that is not among the most probable is an extra entry in ``top_logprobs``. The first of an echoed prompt
    has none.
    """
    top: list[dict[str, float] | None] = []
    for token, one in zip(ids, listed, strict=True):
        if one is None:
            top.append(None)
            continue
        names: dict[str, float] = {}
        for other, logprob in (*one.top, (token, one.logprob)):
            names.setdefault(_name(other, tokenizer), logprob)  # of two tokens with one name the more probable
        top.append(names)
    return {
        "tokens": [_name(token, tokenizer) for token in ids],
        "token_logprobs": [None if one is None else one.logprob for one in listed],
        "top_logprobs": top,
        "text_offset": list(offsets),
    }


def text_offsets(ids: Sequence[int], text: str, decoder: StreamDecoder) -> list[int]:
    """Where each token begins in the text, or would, if that did not end before a stop text.

    ``decoder`` is a new one for the answer's prompt.
    """
    offsets, so_far = [], 0
    for token in ids:
        offsets.append(min(so_far, len(text)))
        so_far += len(decoder.push(token))
    return offsets


def of_prompt(listed: PromptLogprobs, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """The field ``prompt_logprobs`` of a choice, which vLLM has added: null for the first id, then one for each."""
    return [None if one is None else _with_texts(one, tokenizer) for one in listed]


def _with_texts(one: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    top = [{"id": token, "token": _name(token, tokenizer), "logprob": logprob} for token, logprob in one.top]
    return {"logprob": one.logprob, "top_logprobs": top}


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token's text, with U+FFFD for a part of a character, and its bytes; a special token adds none to the text."""
    added = tokenizer.token_bytes(token_id)
    text = added.decode(errors="replace") if added else _special(token_id, tokenizer)
    return {"token": text, "logprob": logprob, "bytes": list(added) if added else None}


def _name(token_id: int, tokenizer: Tokenizer) -> str:
    """The text of a token; of one that is a part of a character its bytes, as OpenAI writes them."""
    added = tokenizer.token_bytes(token_id)
    if not added:
        return _special(token_id, tokenizer)
    try:
        return added.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in added)


def _special(token_id: int, tokenizer: Tokenizer) -> str:
    """The name of a token that adds no text; an id of padding has none."""
    return tokenizer.token_name(token_id) or f"<{token_id}>"
