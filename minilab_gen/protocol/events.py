"""What stands in a token stream, and how it is spelled there.

Token n is the entry with the id ``n-0``; the terminal entry follows with the next number. So an entry's id is a cursor,
and Redis itself refuses a repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from minilab_gen.errors import StreamError
from minilab_gen.logprobs import TokenLogprobs

EndReason = Literal["stop", "length", "context", "cancelled", "timeout", "error"]
JobState = Literal["queued", "started", "finished", "failed", "cancelled"]
"""What has become of a job so far."""

END_REASONS: Final[tuple[EndReason, ...]] = get_args(EndReason)

LOGPROBS_FIELD: Final = "lp"
"""Field of a token's entry."""

Fields = dict[str, str]
RawEntry = tuple[bytes, Mapping[bytes, bytes]]


class TokenEvent(NamedTuple):
    """The n-th token of an answer. A tuple, because one is made for every token, in a third of the time."""

    number: int
    token_id: int
    text: str
    """What became printable with it; often empty inside a character of several bytes or a stop text."""
    logprobs: TokenLogprobs | None = None
    """Where the request asks for them."""

    def to_fields(self) -> Fields:
        fields = {"id": str(self.token_id), "text": self.text}
        return fields if self.logprobs is None else {**fields, LOGPROBS_FIELD: self.logprobs.to_text()}

    def to_json(self) -> dict[str, Any]:
        content = {"n": self.number, "id": self.token_id, "text": self.text}
        return content if self.logprobs is None else {**content, **self.logprobs.to_json()}


@dataclass(frozen=True, slots=True)
class EndEvent:
    """Why and how a job ended."""

    reason: EndReason
    tokens: int
    """Tokens of the answer, a stop token included."""
    prompt_tokens: int
    text: str = ""
    """U+FFFD where the answer was cut inside a character; what could have become a stop text and did not."""
    stop_id: int | None = None
    """The id that ended it, for ``stop``."""
    error: str | None = None
    """What went wrong, for ``error``."""
    phase: Literal["waiting", "running"] | None = None
    """When the time ran out, for ``timeout``."""
    stop_text: str | None = None
    """The text that ended it, for ``stop``."""
    complete: bool | None = None
    """Whether an answer with a form is whole, where it was not cut short from outside; None without a form."""

    refused: bool | None = None
    """Whether the request is at fault, for ``error``: it is answered the same way whenever it comes again."""

    @property
    def number(self) -> int:
        """Its number in the stream: the one after the last token."""
        return self.tokens + 1

    @property
    def succeeded(self) -> bool:
        return self.reason in ("stop", "length", "context")

    def to_fields(self) -> Fields:
        given = self.to_json()
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}

    def to_json(self) -> dict[str, Any]:
        given = asdict(self)
        return {"end": given.pop("reason")} | {name: value for name, value in given.items() if value not in (None, "")}


Event = TokenEvent | EndEvent


def entry_id(number: int) -> str:
    """The stream entry id of token ``number``; 0 is before the first."""
    return f"{number}-0"


def entry_number(raw: bytes) -> int:
    """The token number in an entry id. Raises StreamError for an id that is not of ours."""
    number, dash, rest = raw.partition(b"-")
    if not number.isdigit() or (dash, rest) != (b"-", b"0"):
        raise StreamError(f"a token stream's entry ids must be n-0, got {raw.decode(errors='replace')}")
    return int(number)


def decode_entry(entry: RawEntry) -> Event:
    """The event in a raw entry. Raises StreamError where it is not one."""
    raw_id, raw_fields = entry
    number = entry_number(raw_id)
    fields = {_text(name): _text(value) for name, value in raw_fields.items()}
    try:
        if "end" in fields:
            return _decode_end(fields, number)
        listed = fields.get(LOGPROBS_FIELD)
        logprobs = None if listed is None else TokenLogprobs.from_text(listed)
        return TokenEvent(number, int(fields["id"]), fields["text"], logprobs)
    except (KeyError, ValueError) as error:
        raise StreamError(f"entry {number} is neither a token nor an end: {fields}") from error


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def _decode_end(fields: Fields, number: int) -> EndEvent:
    reason, tokens = fields["end"], int(fields["tokens"])
    if reason not in END_REASONS:
        raise ValueError(reason)
    if tokens != number - 1:  # else tokens could be missing before it and the rest would pass for the whole
        raise ValueError(tokens)
    phase = fields.get("phase")
    return EndEvent(
        reason=reason,
        tokens=tokens,
        prompt_tokens=int(fields["prompt_tokens"]),
        text=fields.get("text", ""),
        stop_id=int(fields["stop_id"]) if "stop_id" in fields else None,
        error=fields.get("error"),
        phase="waiting" if phase == "waiting" else "running" if phase == "running" else None,
        stop_text=fields.get("stop_text"),
        complete=_truth(fields, "complete"),
        refused=_truth(fields, "refused"),
    )


def _truth(fields: Fields, name: str) -> bool | None:
    return {"true": True, "false": False}.get(fields.get(name, ""))
