"""How the next token is chosen: the settings, their rules and their JSON. It must know neither torch nor Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from minilab_gen import field_checks as checks
from minilab_gen.errors import RequestError

MAX_SEED: Final = 2**32 - 1
"""Largest seed. 32 bits are what every random generator takes without folding."""

SMALLEST_TEMPERATURE: Final = 1.2e-38
"""Just above the smallest normal float32: a logit gap divided by less overflows, so below it sampling is greedy."""

LARGEST_TEMPERATURE: Final = 3.4e38
"""Just below the largest float32: dividing by infinity would lose which logits are minus infinity."""

LARGEST_PENALTY: Final = 2.0
"""Of presence and frequency, as in OpenAI's API; it may be negative as well."""

LARGEST_BIAS: Final = 100.0
MAX_BIASES: Final = 1024
"""Ids with a bias. OpenAI takes 1024, too."""

MAX_ALLOWED_IDS: Final = 131_072
"""Ids that alone may be chosen: as many as a prompt may have."""

MAX_BAD_WORDS: Final = 1024
"""Sequences that may not be completed: each costs a comparison at every token."""

MAX_BAD_WORD_IDS: Final = 64
"""Ids of one of them: the last ones of the text are kept for it."""

MAX_MIN_TOKENS: Final = 2**63 - 1

_PLAIN_DIGITS: Final = re.compile(r"0|[1-9][0-9]{0,15}")


class LogitBias(Mapping[int, float]):
    """What is added to the logits of ids, in the order of the ids. It cannot change."""

    __slots__ = ("_biases",)

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._biases = dict(sorted(biases.items()))

    @classmethod
    def of(cls, given: object) -> LogitBias:
        """A bias for each id, whose keys JSON makes texts of plain digits; None for none. Raises RequestError."""
        if given is None:
            return NO_BIAS
        if not isinstance(given, Mapping):
            raise RequestError(f"logit_bias must be an object of id: bias, got {type(given).__name__}")
        if len(given) > MAX_BIASES:
            raise RequestError(f"logit_bias must hold at most {MAX_BIASES} ids, got {len(given)}")
        pairs = [(_id_of(key), bias) for key, bias in given.items()]
        biases = {token: _bias_of(token, bias) for token, bias in pairs}
        if len(biases) < len(given):
            raise RequestError("logit_bias must name each id once, got one as a number and as a text")
        return cls(biases)

    def __getitem__(self, token: int) -> float:
        return self._biases[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(tuple(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


def _id_of(key: object) -> int:
    if type(key) is int and key >= 0:
        return key
    if isinstance(key, str) and _PLAIN_DIGITS.fullmatch(key):
        return int(key)
    raise RequestError(f"logit_bias must have ids in plain digits as keys, got {checks.shown(key)}")


def _bias_of(token: int, bias: object) -> float:
    return checks.number_within(f"the logit_bias of {checks.shown(token)}", bias, -LARGEST_BIAS, LARGEST_BIAS)


NO_BIAS: Final = LogitBias({})


def _bad_words(given: object) -> tuple[tuple[int, ...], ...]:
    if given is None:
        return ()
    return tuple(map(_bad_word, checks.elements("bad_words_ids", given, at_most=MAX_BAD_WORDS, what="lists of ids")))


def _bad_word(given: object) -> tuple[int, ...]:
    word = checks.ids("bad_words_ids", given, at_most=MAX_BAD_WORD_IDS)
    if not word:
        raise RequestError("bad_words_ids must hold lists of at least 1 id, got an empty one")
    return word


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next token is chosen. The default is greedy; ``None`` switches a filter off. See docs/sampling.md."""

    temperature: float = 0.0
    """What logits are divided by. 0 takes the most probable token."""
    top_k: int | None = None
    """Keep every token at least as probable as the k-th."""
    top_p: float | None = None
    """Keep the most probable tokens whose predecessors sum to less than this share of what top-k left."""
    seed: int = 0
    min_p: float = 0.0
    """Keep every token at least this many times as probable as the most probable one. 0 keeps all."""
    repetition_penalty: float = 1.0
    """What positive logits of ids in prompt or answer are divided by, and others multiplied by. 1 changes nothing."""
    presence_penalty: float = 0.0
    """What is subtracted from the logits of ids in the answer."""
    frequency_penalty: float = 0.0
    """The same for each time that an id stands there."""
    logit_bias: Mapping[int, float] = NO_BIAS
    """What is added to the logits of ids."""
    min_tokens: int = 0
    """The request's stop ids cannot be chosen before so many tokens."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these can be chosen. None allows all."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that no token may complete in prompt and answer."""

    def __post_init__(self) -> None:
        self._set("temperature", checks.number("temperature", self.temperature))
        if self.temperature < 0:
            raise RequestError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None:
            checks.integer("top_k", self.top_k, at_least=1)
        if self.top_p is not None:
            self._set("top_p", checks.number("top_p", self.top_p))
            if not 0 < self.top_p <= 1:
                raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        checks.integer("seed", self.seed, at_least=0, at_most=MAX_SEED)
        self._set("min_p", checks.number_within("min_p", self.min_p, 0, 1))
        self._set("repetition_penalty", checks.number("repetition_penalty", self.repetition_penalty))
        if self.repetition_penalty <= 0:
            raise RequestError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            penalty = checks.number_within(name, getattr(self, name), -LARGEST_PENALTY, LARGEST_PENALTY)
            self._set(name, penalty)
        self._check_ids()

    def _check_ids(self) -> None:
        if type(self.logit_bias) is not LogitBias:
            self._set("logit_bias", LogitBias.of(self.logit_bias))
        checks.integer("min_tokens", self.min_tokens, at_least=0, at_most=MAX_MIN_TOKENS)
        if self.allowed_token_ids is not None:
            allowed = checks.ids("allowed_token_ids", self.allowed_token_ids, at_most=MAX_ALLOWED_IDS)
            if not allowed:
                raise RequestError("allowed_token_ids must hold at least 1 id, got none")
            self._set("allowed_token_ids", allowed)
        self._set("bad_words_ids", _bad_words(self.bad_words_ids))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken without a draw."""
        return self.temperature < SMALLEST_TEMPERATURE

    @property
    def divisor(self) -> float:
        """The temperature as a float32 holds it: a larger one makes all logits equal just as well."""
        return min(self.temperature, LARGEST_TEMPERATURE)

    @property
    def penalty(self) -> float:
        """The repetition penalty as a float32 holds it."""
        return min(max(self.repetition_penalty, SMALLEST_TEMPERATURE), LARGEST_TEMPERATURE)

    @property
    def edits_logits(self) -> bool:
        """Whether a token is chosen from other logits than the model's own."""
        penalized = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        masked = self.min_tokens > 0 or self.allowed_token_ids is not None or bool(self.bad_words_ids)
        return penalized or masked or bool(self.logit_bias)

    def check_fits(self, vocab_size: int) -> None:
        """Raise RequestError for an id that a model of so many has not."""
        checks.ids_below("logit_bias ids", self.logit_bias, vocab_size)
        checks.ids_below("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        for word in self.bad_words_ids:
            checks.ids_below("bad_words_ids", word, vocab_size)

    def to_payload(self) -> dict[str, Any]:
        """The settings as fields of a JSON object: all that payloads have always held, and what is not at its default.

        Workers of a release before a setting take jobs that do not use it, and the lines of a batch keep their names.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: _as_json(value)
            for name, value in values.items()
            if name in _ALWAYS_WRITTEN or value != getattr(GREEDY, name)
        }


GREEDY: Final[SamplingSettings] = SamplingSettings()

SAMPLING_FIELDS: Final = tuple(each.name for each in fields(SamplingSettings))

_ALWAYS_WRITTEN: Final = ("temperature", "top_k", "top_p", "seed")
"""What payloads have held from the first release on."""


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): bias for key, bias in value.items()}
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    return value
