"""What is asked of the service, checked wherever it enters. It must know neither torch nor Redis.

The same rules hold in Python, on the command line, in Redis and in the engine, because all of them build these classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from reprlib import Repr
from typing import Any, Final, TypedDict

from minilab_gen.errors import RequestError
from minilab_gen.logprobs import MOST_LISTED, check_prompt_size

MAX_SEED = 2**32 - 1
"""Largest seed. 32 bits are what every random generator takes without folding."""

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

DEFAULT_MAX_NEW_TOKENS = 64

DEFAULT_CHAT_TOKENS = 1024
"""The same for an answer in a conversation, which ends by itself: more than nearly all of them take."""

MAX_NEW_TOKENS = 2**63 - 1
"""As good as no bound, since the context ends every answer; it keeps numbers to what JSON and Redis can carry."""

SMALLEST_TEMPERATURE = 1.2e-38
"""Just above the smallest normal float32: a logit gap divided by less overflows, so below it sampling is greedy."""

LARGEST_TEMPERATURE = 3.4e38
"""Just below the largest float32: dividing by infinity would lose which logits are minus infinity."""


_NAMED_FIELDS = 8
"""Unknown fields that a refusal names: as many as a request has known ones."""

_LONGEST_QUOTE = 80
"""Characters of a value that a refusal quotes: a line on a terminal, and no megabyte in a stream's last entry."""

_QUOTED = Repr()
_QUOTED.maxstring = _QUOTED.maxlong = _QUOTED.maxother = _LONGEST_QUOTE


def shown(value: object) -> str:
    """A value as a refusal quotes it: short, whatever it is."""
    try:
        text = _QUOTED.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"an immense {type(value).__name__}"
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."


def check_text(text: str) -> None:
    """Raise RequestError for a text that is too long to be taken apart into tokens, or not of whole characters."""
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise RequestError(f"prompt must be at most {MAX_PROMPT_CHARACTERS} characters long, got {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"prompt must be text of whole characters, got {error.reason} at {error.start}") from error


def _ids(name: str, ids: object, *, at_most: int) -> tuple[int, ...]:
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise RequestError(f"{name} must be a list of ids, got {type(ids).__name__}")
    kept = tuple(islice(ids, at_most + 1))  # what is no list may have no end
    if len(kept) > at_most:
        came = len(ids) if isinstance(ids, Sized) else "more"
        raise RequestError(f"{name} must hold at most {at_most} ids, got {came}")
    for index, token in enumerate(kept):
        if type(token) is not int or token < 0:
            raise RequestError(f"{name} must hold integers of at least 0, got {shown(token)} at position {index}")
    return kept


def _stop_texts(given: object) -> tuple[str, ...]:
    """The texts in ``stop``, which may be one."""
    texts = (given,) if isinstance(given, str) else given
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise RequestError(f"stop must be a text or a list of texts, got {shown(given)}")
    kept = tuple(islice(texts, MAX_STOP_TEXTS + 1))
    if len(kept) > MAX_STOP_TEXTS:
        came = len(texts) if isinstance(texts, Sized) else "more"
        raise RequestError(f"stop must hold at most {MAX_STOP_TEXTS} texts, got {came}")
    for index, text in enumerate(kept):
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            rule = f"texts of 1 to {MAX_STOP_CHARACTERS} characters"
            raise RequestError(f"stop must hold {rule}, got {shown(text)} at position {index}")
        if any("\ud800" <= character <= "\udfff" for character in text):  # of a text that was no UTF-8
            raise RequestError(f"stop must hold texts of whole characters, got {shown(text)} at position {index}")
    return kept


def _integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int:  # a bool is an int to isinstance
        raise RequestError(f"{name} must be an integer, got {shown(value)}")
    if value < at_least:
        raise RequestError(f"{name} must be at least {at_least}, got {shown(value)}")
    if at_most is not None and value > at_most:
        raise RequestError(f"{name} must be at most {at_most}, got {shown(value)}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{name} must be a finite number, got {shown(value)}")
    return number


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next token is chosen. The default is greedy; ``None`` switches a filter off."""

    temperature: float = 0.0
    """What logits are divided by. 0 takes the most probable token."""
    top_k: int | None = None
    """Keep every token at least as probable as the k-th."""
    top_p: float | None = None
    """Keep the most probable tokens whose predecessors sum to less than this share of what top-k left."""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", _number("temperature", self.temperature))
        if self.temperature < 0:
            raise RequestError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None:
            _integer("top_k", self.top_k, at_least=1)
        if self.top_p is not None:
            object.__setattr__(self, "top_p", _number("top_p", self.top_p))
            if not 0 < self.top_p <= 1:
                raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        _integer("seed", self.seed, at_least=0, at_most=MAX_SEED)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken without a draw."""
        return self.temperature < SMALLEST_TEMPERATURE

    @property
    def divisor(self) -> float:
        """The temperature as a float32 holds it: a larger one makes all logits equal just as well."""
        return min(self.temperature, LARGEST_TEMPERATURE)


GREEDY = SamplingSettings()


class RequestSettings(TypedDict, total=False):
    """All that may be set beside the prompt, as keyword arguments: the same names as :data:`SETTING_FIELDS`.

    ``None`` asks for the default, wherever there is one that is no number of its own.
    """

    max_new_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop_ids: Sequence[int] | None
    stop: str | Sequence[str] | None
    include_stop: bool
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
    logprobs: int | None = None
    """How many of the most probable tokens are listed with each token's logprob; None for no logprobs."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt, at_most=MAX_PROMPT_IDS))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids, at_most=MAX_STOP_IDS))
        object.__setattr__(self, "stop", _stop_texts(self.stop))
        if type(self.include_stop) is not bool:
            raise RequestError(f"include_stop must be true or false, got {shown(self.include_stop)}")
        if not self.prompt:
            raise RequestError("prompt must hold at least 1 id, got none")
        for name, count in {"logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs}.items():
            if count is not None:
                _integer(name, count, at_least=0, at_most=MOST_LISTED)
        check_prompt_size(len(self.prompt), self.prompt_logprobs)
        fewest = 1 if self.prompt_logprobs is None else 0
        _integer("max_new_tokens", self.max_new_tokens, at_least=fewest, at_most=MAX_NEW_TOKENS)
        if not isinstance(self.settings, SamplingSettings):
            raise RequestError(f"settings must be SamplingSettings, got {type(self.settings).__name__}")

    def check_fits(self, limits: ModelLimits) -> None:
        """Raise RequestError unless the model can run this: ids known, and room for a new token where one is asked."""
        check_prompt(self.prompt, limits, leaves_room=self.max_new_tokens > 0)
        longest = min(len(self.prompt) + self.max_new_tokens, limits.context_length)
        if limits.kv_tokens is not None and longest > limits.kv_tokens:
            raise RequestError(
                f"prompt and answer must fit the {limits.kv_tokens} tokens that a worker can hold (--kv-tokens), "
                f"got {len(self.prompt)} and up to {longest - len(self.prompt)} new ones"
            )
        for index, token in enumerate(self.stop_ids):
            if token >= limits.vocab_size:
                raise RequestError(
                    f"stop_ids must be below {limits.vocab_size}, got {shown(token)} at position {index}"
                )

    def longest_answer(self, context_length: int) -> int:
        """The most tokens that can follow: what was asked or what the context leaves."""
        return min(self.max_new_tokens, context_length - len(self.prompt))

    def with_seed(self, seed: int) -> GenerationRequest:
        """The same with this seed where it is sampled; a greedy request has no use for one."""
        return self if self.settings.is_greedy else replace(self, settings=replace(self.settings, seed=seed))

    def to_payload(self) -> dict[str, Any]:
        """The request as a JSON object; :meth:`from_payload` reads it."""
        sampling = asdict(self.settings)
        kept = {name for name in sampling if name in _ALWAYS_WRITTEN or sampling[name] != getattr(GREEDY, name)}
        return {
            "prompt": list(self.prompt),
            "max_new_tokens": self.max_new_tokens,
            **{name: value for name, value in sampling.items() if name in kept},
            "stop_ids": list(self.stop_ids),
            **({"stop": list(self.stop)} if self.stop else {}),
            **({"include_stop": True} if self.include_stop else {}),
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
        settings = SamplingSettings(**{name: payload[name] for name in _SAMPLING_FIELDS if name in payload})
        rest = {name: payload[name] for name in payload if name not in _SAMPLING_FIELDS}
        return cls(settings=settings, **rest)


_SAMPLING_FIELDS: Final = tuple(field.name for field in fields(SamplingSettings))

SETTING_FIELDS: Final[tuple[str, ...]] = tuple(
    name
    for field in fields(GenerationRequest)
    if field.name != "prompt"
    for name in (_SAMPLING_FIELDS if field.name == "settings" else (field.name,))
)
"""What a payload may hold beside its prompt: the names of all settings, wherever one is given."""

_ALWAYS_WRITTEN: Final = ("temperature", "top_k", "top_p", "seed")
"""What payloads have held from the first release on. A later setting is written only where it is not at its default:
workers of a release before it take such a job, and the lines of a batch keep the names of their jobs."""

_DEFAULT_DEPENDS: Final = (
    *("max_new_tokens", "seed", "stop_ids", "stop", "include_stop"),
    *("logprobs", "prompt_logprobs"),
)
"""Settings of which ``None`` is no value: it asks for the default, as leaving them out does."""


def given_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings without those whose ``None`` asks for the default."""
    return {name: value for name, value in settings.items() if value is not None or name not in _DEFAULT_DEPENDS}


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
