"""What is asked of the service, checked wherever it enters. It must know neither torch nor Redis.

The same rules hold in Python, on the command line, in Redis and in the engine, because all of them build these classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypedDict

from minilab_gen import field_checks as checks
from minilab_gen.answer_form import FORM_FIELDS, AnswerForm
from minilab_gen.errors import RequestError
from minilab_gen.field_checks import shown
from minilab_gen.logprobs import MOST_LISTED, check_prompt_size
from minilab_gen.sampling_settings import (
    GREEDY,
    LARGEST_TEMPERATURE,
    MAX_SEED,
    SAMPLING_FIELDS,
    SMALLEST_TEMPERATURE,
    SamplingSettings,
)

__all__ = [
    "DEFAULT_CHAT_TOKENS",
    "DEFAULT_MAX_NEW_TOKENS",
    "FORM_FIELDS",
    "GIVEN_FIELDS",
    "GREEDY",
    "LARGEST_TEMPERATURE",
    "MAX_NEW_TOKENS",
    "MAX_PROMPT_CHARACTERS",
    "MAX_PROMPT_IDS",
    "MAX_SEED",
    "MAX_STOP_CHARACTERS",
    "MAX_STOP_IDS",
    "MAX_STOP_TEXTS",
    "SETTING_FIELDS",
    "SMALLEST_TEMPERATURE",
    "AnswerForm",
    "GenerationRequest",
    "ModelLimits",
    "RequestSettings",
    "SamplingSettings",
    "check_prompt",
    "check_text",
    "given_settings",
    "shown",
]

MAX_STOP_IDS = 16
"""Stop ids of one request: more than any chat template needs, few enough to test at every token."""

MAX_STOP_TEXTS = 16
MAX_STOP_CHARACTERS = 256
"""Characters of one stop text: longer than any marker, and as much as is ever held back from a reader."""

MAX_PROMPT_IDS = 131_072
"""Ids of one prompt: the longest context that models of our kind are trained for. A model's own context is often far
less, but is known only once its card is read; this bounds what is looked at before."""

MAX_PROMPT_CHARACTERS = 1_000_000
"""Characters of one prompt: nearly eight for each id, where English has four. A tokenizer takes two seconds for them;
ten times as many took 18 s and 1.7 GB."""

MAX_ANSWERS = 64
"""Answers of one submission, which are jobs of their own: as many as a worker runs at a time by default."""

DEFAULT_MAX_NEW_TOKENS = 64

DEFAULT_CHAT_TOKENS = 1024
"""The same for an answer in a conversation, which ends by itself: more than nearly all of them take."""

MAX_NEW_TOKENS = 2**63 - 1
"""As good as no bound, since the context ends every answer; it keeps numbers to what JSON and Redis can carry."""

_NAMED_FIELDS = 8
"""Unknown fields that a refusal names: as many as a request has known ones."""


def check_n(n: object) -> int:
    """The number of answers, if one submission may have so many; else RequestError."""
    if type(n) is not int or not 1 <= n <= MAX_ANSWERS:
        raise RequestError(f"n must be a whole number from 1 to {MAX_ANSWERS}, got {shown(n)}")
    return n


def check_text(text: str) -> None:
    """Raise RequestError for a text that is too long to be taken apart into tokens, or not of whole characters."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise RequestError(f"prompt must be at most {MAX_PROMPT_CHARACTERS} characters long, got {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"prompt must be text of whole characters, got {error.reason} at {error.start}") from error


def _stop_texts(given: object) -> tuple[str, ...]:
    """The texts in ``stop``, which may be one."""
    texts = (given,) if isinstance(given, str) else given
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise RequestError(f"stop must be a text or a list of texts, got {shown(given)}")
    kept = checks.elements("stop", texts, at_most=MAX_STOP_TEXTS, what="texts")
    return tuple(_stop_text(text, index) for index, text in enumerate(kept))


def _stop_text(text: object, index: int) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
        rule = f"texts of 1 to {MAX_STOP_CHARACTERS} characters"
        raise RequestError(f"stop must hold {rule}, got {shown(text)} at position {index}")
    if not checks.is_whole(text):
        raise RequestError(f"stop must hold texts of whole characters, got {shown(text)} at position {index}")
    return text


class RequestSettings(TypedDict, total=False):
    """All that may be set beside the prompt, as keyword arguments: the same names as :data:`GIVEN_FIELDS`.

    ``None`` asks for the default, as leaving one out does.
    """

    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    min_tokens: int | None
    allowed_token_ids: Sequence[int] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    bad_words: Sequence[str] | None
    stop_ids: Sequence[int] | None
    ignore_eos: bool | None
    stop: str | Sequence[str] | None
    include_stop: bool | None
    response_format: Mapping[str, Any] | type | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    logprobs: int | None
    prompt_logprobs: int | None


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must fit, as the model card gives it."""

    vocab_size: int
    context_length: int
    kv_tokens: int | None = None
    """Tokens whose keys and values a worker can hold at a time; None says nothing about it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompt ids, how many tokens may follow, how they are chosen, and what ends the text."""

    prompt: tuple[int, ...]
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    settings: SamplingSettings = GREEDY
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Texts before which the answer ends."""
    include_stop: bool = False
    """Whether the answer keeps the one that ended it."""
    form: AnswerForm | None = None
    """What the answer must be: JSON of a schema, for instance."""
    logprobs: int | None = None
    """How many of the most probable tokens are listed with each token's logprob; None for no logprobs."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", checks.ids("prompt", self.prompt, at_most=MAX_PROMPT_IDS))
        object.__setattr__(self, "stop_ids", checks.ids("stop_ids", self.stop_ids, at_most=MAX_STOP_IDS))
        object.__setattr__(self, "stop", _stop_texts(self.stop))
        if type(self.include_stop) is not bool:
            raise RequestError(f"include_stop must be true or false, got {shown(self.include_stop)}")
        if not self.prompt:
            raise RequestError("prompt must hold at least 1 id, got none")
        for name, count in {"logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs}.items():
            if count is not None:
                checks.integer(name, count, at_least=0, at_most=MOST_LISTED)
        check_prompt_size(len(self.prompt), self.prompt_logprobs)
        fewest = 1 if self.prompt_logprobs is None else 0
        checks.integer("max_new_tokens", self.max_new_tokens, at_least=fewest, at_most=MAX_NEW_TOKENS)
        if self.form is not None and not isinstance(self.form, AnswerForm):
            raise RequestError(f"form must be an AnswerForm, got {type(self.form).__name__}")
        if not isinstance(self.settings, SamplingSettings):
            raise RequestError(f"settings must be SamplingSettings, got {type(self.settings).__name__}")
        if self.settings.min_tokens > self.max_new_tokens:
            most = f"max_new_tokens, {self.max_new_tokens}"
            raise RequestError(f"min_tokens must be at most {most}, got {self.settings.min_tokens}")

    def check_fits(self, limits: ModelLimits) -> None:
        """Raise RequestError unless the model can run this: ids known, and room for a new token where one is asked."""
        check_prompt(self.prompt, limits, leaves_room=self.max_new_tokens > 0)
        longest = min(len(self.prompt) + self.max_new_tokens, limits.context_length)
        if limits.kv_tokens is not None and longest > limits.kv_tokens:
            raise RequestError(
                f"prompt and answer must fit the {limits.kv_tokens} tokens that a worker can hold (--kv-tokens), "
                f"got {len(self.prompt)} and up to {longest - len(self.prompt)} new ones"
            )
        checks.ids_below("stop_ids", self.stop_ids, limits.vocab_size)
        self.settings.check_fits(limits.vocab_size)

    def longest_answer(self, context_length: int) -> int:
        """The most tokens that can follow: what was asked or what the context leaves."""
        return min(self.max_new_tokens, context_length - len(self.prompt))

    def with_seed(self, seed: int) -> GenerationRequest:
        """The same with this seed where it is sampled; a greedy request has no use for one."""
        return self if self.settings.is_greedy else replace(self, settings=replace(self.settings, seed=seed))

    def cut_to(self, tokens: int) -> GenerationRequest:
        """The same for so many tokens of its answer, which are the same ones."""
        settings = replace(self.settings, min_tokens=min(self.settings.min_tokens, tokens))
        return replace(self, max_new_tokens=tokens, settings=settings)

    def to_payload(self) -> dict[str, Any]:
        """The request as a JSON object; :meth:`from_payload` reads it."""
        return {
            "prompt": list(self.prompt),
            "max_new_tokens": self.max_new_tokens,
            **self.settings.to_payload(),
            "stop_ids": list(self.stop_ids),
            **({"stop": list(self.stop)} if self.stop else {}),
            **({"include_stop": True} if self.include_stop else {}),
            **(self.form.to_payload() if self.form else {}),
            **({} if self.logprobs is None else {"logprobs": self.logprobs}),
            **({} if self.prompt_logprobs is None else {"prompt_logprobs": self.prompt_logprobs}),
        }

    @classmethod
    def from_payload(cls, payload: object) -> GenerationRequest:
        """The request in a JSON object. Raises RequestError for anything that breaks a rule or is not known."""
        if not isinstance(payload, Mapping):
            raise RequestError(f"a request must be an object, got {type(payload).__name__}")
        if unknown := set(payload) - {"prompt", *SETTING_FIELDS}:
            raise RequestError(f"a request has no field {', '.join(sorted(map(shown, unknown))[:_NAMED_FIELDS])}")
        if "prompt" not in payload:
            raise RequestError("a request must have a prompt, got none")
        settings = SamplingSettings(**{name: payload[name] for name in SAMPLING_FIELDS if name in payload})
        rest = {name: payload[name] for name in payload if name not in (*SAMPLING_FIELDS, *FORM_FIELDS)}
        return cls(settings=settings, form=AnswerForm.of(payload), **rest)


SETTING_FIELDS: Final[tuple[str, ...]] = tuple(
    name
    for field in fields(GenerationRequest)
    if field.name != "prompt"
    for name in {"settings": SAMPLING_FIELDS, "form": FORM_FIELDS}.get(field.name, (field.name,))
)
"""What a payload may hold beside its prompt: the names of all settings, wherever one is given."""

GIVEN_FIELDS: Final = (*SETTING_FIELDS, "bad_words", "ignore_eos")
"""What users may set beside the prompt. The last ones become others of a request by its model's card and tokenizer."""


def given_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings without those that are ``None``, which asks for the default as leaving them out does."""
    return {name: value for name, value in settings.items() if value is not None}


def check_prompt(prompt: Sequence[int], limits: ModelLimits, *, leaves_room: bool = True) -> None:
    """Raise RequestError unless a model of these limits can read the prompt, and continue it by at least one token."""
    longest = limits.context_length - leaves_room
    if not 1 <= len(prompt) <= longest:
        raise RequestError(f"prompt must hold 1 to {longest} ids, got {len(prompt)}")
    for index, token in enumerate(prompt):
        if not 0 <= token < limits.vocab_size:
            raise RequestError(
                f"prompt ids must be 0 to {limits.vocab_size - 1}, got {shown(token)} at position {index}"
            )
