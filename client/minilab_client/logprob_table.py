"""The logprobs of an answer and of its prompt as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import redis

from minilab_client.output import write_table
from minilab_client.prompt_texts import PromptTexts
from minilab_gen.errors import RequestError
from minilab_gen.logprobs import TokenLogprobs
from minilab_gen.protocol.jobs import fetch, model_of, request_of
from minilab_gen.protocol.results import JobResult
from minilab_gen.text.tokenizer import Tokenizer

_COLUMNS = ("N", "TOKEN", "LOGPROB", "MOST PROBABLE")


def write_logprobs(connection: redis.Redis, found: JobResult) -> None:
    """A row for each token of the prompt and of the answer that has some. Raises RequestError where none has."""
    if found.logprobs is None and found.prompt_logprobs is None:
        raise RequestError(
            f"the job {found.job_id} has no logprobs; submit it with --logprobs K or --prompt-logprobs K to have some"
        )
    job = fetch(connection, found.job_id)
    tokenizer = PromptTexts(connection).tokenizer(model_of(job))
    rows: list[tuple[str, ...]] = []
    if found.prompt_logprobs is not None:
        rows += _rows("prompt ", request_of(job).prompt, found.prompt_logprobs, tokenizer)
    rows += _rows("", found.ids, found.logprobs or (), tokenizer)
    write_table(_COLUMNS, rows, {"MOST PROBABLE": "end"})


def _rows(
    what: str, ids: Sequence[int], listed: Iterable[TokenLogprobs | None], tokenizer: Tokenizer | None
) -> Iterator[tuple[str, ...]]:
    for number, (token, one) in enumerate(zip(ids, listed, strict=False), start=1):
        top = ", ".join(f"{_named(other, tokenizer)} {logprob:.4f}" for other, logprob in one.top) if one else ""
        yield f"{what}{number}", _named(token, tokenizer), f"{one.logprob:.4f}" if one else "", top


def _named(token_id: int, tokenizer: Tokenizer | None) -> str:
    """A token's text in quotes, a part of a character as bytes, a special token's name; else its id."""
    added = tokenizer.token_bytes(token_id) if tokenizer is not None else b""
    if not added:
        return (tokenizer.token_name(token_id) if tokenizer is not None else None) or str(token_id)
    try:
        return repr(added.decode())
    except UnicodeDecodeError:
        return repr(added)
