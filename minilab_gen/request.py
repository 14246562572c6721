"""What is asked of the service, checked wherever it enters. It must know neither torch nor Redis.

The same rules hold in Python, on the command line, in Redis and in the engine, because all of them build these classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from minilab_gen.errors import RequestError

MAX_SEED = 2**32 - 1
"""Largest seed. 32 bits are what every random generator takes without folding."""

MAX_STOP_IDS = 16
"""Stop ids of one request: more than any chat template needs, few enough to test at every token."""

DEFAULT_MAX_NEW_TOKENS = 64

SMALLEST_TEMPERATURE = 1.2e-38
"""Just above the smallest normal float32: a logit gap divided by less overflows, so below it sampling is greedy."""

LARGEST_TEMPERATURE = 3.4e38
"""Just below the largest float32: dividing by infinity would lose which logits are minus infinity."""


def _ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise RequestError(f"{name} must be a list of ids, got {type(ids).__name__}")
    kept = tuple(ids)
    for place, token in enumerate(kept):
        if type(token) is not int or token < 0:
            raise RequestError(f"{name} must hold integers of at least 0, got {token!r} at position {place}")
    return kept


def _integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if type(value) is not int:  # a bool is an int to isinstance
        raise RequestError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise RequestError(f"{name} must be at least {at_least}, got {value}")
    if at_most is not None and value > at_most:
        raise RequestError(f"{name} must be at most {at_most}, got {value}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{name} must be a finite number, got {value}")
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


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must fit, as the model card gives it."""

    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompt ids, how many tokens may follow, how they are chosen, and which of them end the text."""

    prompt: tuple[int, ...]
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    settings: SamplingSettings = GREEDY
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        if not self.prompt:
            raise RequestError("prompt must hold at least 1 id, got none")
        if len(self.stop_ids) > MAX_STOP_IDS:
            raise RequestError(f"stop_ids must hold at most {MAX_STOP_IDS} ids, got {len(self.stop_ids)}")
        _integer("max_new_tokens", self.max_new_tokens, at_least=1)
        if not isinstance(self.settings, SamplingSettings):
            raise RequestError(f"settings must be SamplingSettings, got {type(self.settings).__name__}")

    def check_fits(self, limits: ModelLimits) -> None:
        """Raise RequestError unless the model can run this: ids known, and room for at least one new token."""
        check_prompt(self.prompt, limits)
        for place, token in enumerate(self.stop_ids):
            if token >= limits.vocab_size:
                raise RequestError(f"stop_ids must be below {limits.vocab_size}, got {token} at position {place}")

    def longest_answer(self, context_length: int) -> int:
        """The most tokens that can follow: what was asked or what the context leaves."""
        return min(self.max_new_tokens, context_length - len(self.prompt))

    def to_payload(self) -> dict[str, Any]:
        """The request as a JSON object; :meth:`from_payload` reads it."""
        return {
            "prompt": list(self.prompt),
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.settings.temperature,
            "top_k": self.settings.top_k,
            "top_p": self.settings.top_p,
            "seed": self.settings.seed,
            "stop_ids": list(self.stop_ids),
        }

    @classmethod
    def from_payload(cls, payload: object) -> GenerationRequest:
        """The request in a JSON object. Raises RequestError for anything that breaks a rule or is not known."""
        if not isinstance(payload, Mapping):
            raise RequestError(f"a request must be an object, got {type(payload).__name__}")
        sampling = {field.name for field in fields(SamplingSettings)}
        unknown = set(payload) - sampling - {"prompt", "max_new_tokens", "stop_ids"}
        if unknown:
            raise RequestError(f"a request has no field {', '.join(sorted(map(repr, unknown)))}")
        if "prompt" not in payload:
            raise RequestError("a request must have a prompt, got none")
        settings = SamplingSettings(**{name: payload[name] for name in sampling if name in payload})
        rest = {name: payload[name] for name in payload if name not in sampling}
        return cls(settings=settings, **rest)


def check_prompt(prompt: Sequence[int], limits: ModelLimits) -> None:
    """Raise RequestError unless a model of these limits can continue the prompt by at least one token."""
    longest = limits.context_length - 1
    if not 1 <= len(prompt) <= longest:
        raise RequestError(f"prompt must hold 1 to {longest} ids, got {len(prompt)}")
    for place, token in enumerate(prompt):
        if not 0 <= token < limits.vocab_size:
            raise RequestError(f"prompt ids must be 0 to {limits.vocab_size - 1}, got {token} at position {place}")
