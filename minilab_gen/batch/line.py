"""One line of a batch: what it asks for, and the name under which its job can be found again.

The name comes from the content alone, as the user wrote it: of a chat the messages, not the prompt that the model's
template makes of them, which may hold today's date. So a client that was killed finds the jobs that it had submitted,
and a line whose content has changed is another request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from minilab_gen.api import ended_by_name
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError
from minilab_gen.openai.bodies import in_their_words
from minilab_gen.request import GenerationRequest, shown
from minilab_gen.text.call_reader import CallReading

Form = Literal["minilab", "openai", "openai-chat"]

LONGEST_CUSTOM_ID: Final = 512
"""Characters: a path or a URL fits; it is kept for each line of the file, and stands in each answer."""

_KEY_BYTES: Final = 8
"""Of a custom_id's hash. Among a million lines two are equal once in 37 million files."""

_JOB_ID: Final = re.compile(r"batch-([0-9a-f]{32})(?:_[0-9]{1,2})?(?:-[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Content:
    """What a line asks for, in whichever form it is written."""

    payload: Mapping[str, object]
    """Values as they came, for :meth:`GenerationRequest.from_payload` to check; without a seed where there is none."""
    written: Mapping[str, object] | None = None
    """What makes a chat the same, in place of the fields of the request that its template makes; else None."""
    n: int = 1
    """Answers that it asks for."""
    echo: bool = False
    """Whether the answer is to begin with the prompt."""
    calls: CallReading | None = None
    """How calls of tools in the answer are read; None where they stay text."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can be answered."""

    number: int
    custom_id: str
    form: Form
    request: GenerationRequest
    seed: int | None
    """The seed where it matters or was given."""
    digest: str
    """Equal digests ask for the same answer to the same custom_id by the same model, in the same form."""
    rendered_digest: str | None = None
    """Of a chat: the digest of its rendered prompt, by which earlier releases named its job."""
    n: int = 1
    """Answers that it asks for."""
    choice: int | None = None
    """Which of several answers ``request`` and ``seed`` are for; None where it asks for one, and for the whole line."""
    echo: bool = False
    """Whether the answer is to begin with the prompt."""
    calls: CallReading | None = None
    """How calls of tools in the answer are read; None where they stay text."""

    def job_id(self, attempt: int) -> str:
        """The id of its job; where one failed, the next attempt has another."""
        choice = "" if self.choice is None else f"_{self.choice}"
        return f"batch-{self.digest}{choice}" if not attempt else f"batch-{self.digest}{choice}-{attempt}"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be answered."""

    number: int
    custom_id: str | None
    """None where it names none that can be repeated."""
    reason: str


def line_of(number: int, custom_id: str, form: Form, model: str, content: Content) -> Line:
    """The line that asks for this. Without a seed, its own content gives it one. Raises RequestError."""
    request = GenerationRequest.from_payload(content.payload)
    seed = request.settings.seed if "seed" in content.payload else None
    rest: dict[str, Any] = {"custom_id": custom_id, "form": form, "model": model}
    if content.echo:
        rest["echo"] = True
    rest["stop_texts"] = ()  # where they once were: digests stay what they are
    if content.n != 1:
        rest["n"] = content.n
    fields = {**request.to_payload(), "seed": seed}
    digest = _digest(rest | {"request": fields})
    rendered_digest = None
    if content.written is not None:
        rendered_digest, digest = digest, _digest(rest | {"request": {**fields, **content.written}})
    if seed is None and not request.settings.is_greedy:
        seed = int(digest[:8], 16)  # 32 bits, which is every seed there is
        request = request.with_seed(seed)
    more: dict[str, Any] = {"n": content.n, "echo": content.echo, "calls": content.calls}
    return Line(number, custom_id, form, request, seed, digest, rendered_digest, **more)


def checked_line(number: int, custom_id: str, form: Form, content: Content, model: AskedModel) -> Line:
    """The line that asks this of a model, which can do it. Raises RequestError, with the names of the line's form."""
    try:
        line = line_of(number, custom_id, form, model.card.name, content)
        line = replace(line, request=ended_by_name(line.request, model.card, model.tokenizer))
        line.request.check_fits(model.card.limits)
    except RequestError as error:
        if form != "minilab":
            raise in_their_words(error) from error
        raise
    return line


def digest_in(job_id: object) -> str | None:
    """The digest of the line whose job has this id; None for the id of any other job."""
    found = _JOB_ID.fullmatch(job_id) if isinstance(job_id, str) else None
    return found[1] if found else None


def custom_id_of(fields: dict[str, Any]) -> str:
    """The custom_id in a line. Raises RequestError."""
    if "custom_id" not in fields:
        raise RequestError("a line must have a custom_id, got none")
    given = fields["custom_id"]
    if not isinstance(given, str) or not 1 <= len(given) <= LONGEST_CUSTOM_ID:
        raise RequestError(f"custom_id must be a text of 1 to {LONGEST_CUSTOM_ID} characters, got {shown(given)}")
    if not is_whole(given):
        raise RequestError(f"custom_id must hold whole characters, got {shown(given)}")
    return given


def key_of(custom_id: str) -> int:
    """What is kept of a custom_id, to know it again."""
    digest = hashlib.blake2b(custom_id.encode(), digest_size=_KEY_BYTES).digest()
    return int.from_bytes(digest, "big")


def is_whole(text: str) -> bool:
    """Whether UTF-8 can hold a text: JSON can also spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
