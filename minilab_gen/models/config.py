"""The shape of a model, in numbers that are checked. It must know neither torch nor Redis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal


def _check_positive(scaling: object) -> None:
    """See that every number of a scaling is above 0."""
    for field in fields(scaling):  # type: ignore[arg-type]
        value = getattr(scaling, field.name)
        if field.name == "truncate" or (value is None and field.default is None):
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) not in (int, float) or not 0 < number < float("inf"):
                raise ValueError(f"{field.name} must be a number above 0, got {number!r}")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All angles divided by a factor: positions are interpolated."""

    kind: ClassVar[Literal["linear"]] = "linear"
    factor: float

    def __post_init__(self) -> None:
        _check_positive(self)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3 stretches the angles that turn slowly, so that a context longer than the trained one fits."""

    kind: ClassVar[Literal["llama3"]] = "llama3"
    factor: float
    """What the slowest angles are divided by."""
    low_freq_factor: float
    """Angles that turn less often than this within the trained context are divided."""
    high_freq_factor: float
    """Angles that turn more often than this stay; those between are mixed."""
    original_max_position_embeddings: int
    """Tokens of the trained context."""

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.low_freq_factor >= self.high_freq_factor:
            came = f"{self.low_freq_factor} and {self.high_freq_factor}"
            raise ValueError(f"low_freq_factor must be below high_freq_factor, got {came}")


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """How YaRN does the same, mixing by dimension, with attention sharpened besides."""

    kind: ClassVar[Literal["yarn"]] = "yarn"
    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    """Pairs of dimensions that turn more often than this within the trained context stay."""
    beta_slow: float = 1.0
    """Those that turn less often are divided; those between are mixed."""
    attention_factor: float | None = None
    """What sines and cosines are multiplied by; None takes it from the factor."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    """Where both are given, the weights in that factor; None is 1."""
    truncate: bool = True
    """Whether the mixture begins and ends at whole dimensions."""

    def __post_init__(self) -> None:
        _check_positive(self)
        if type(self.truncate) is not bool:
            raise ValueError(f"truncate must be true or false, got {self.truncate!r}")

    def attention(self, log: Callable[[float], float]) -> float:
        """What sines and cosines are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor

        def scale(weight: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * weight * log(self.factor) + 1.0

        if self.mscale and self.mscale_all_dim:
            return scale(self.mscale) / scale(self.mscale_all_dim)
        return scale(1.0)


@dataclass(frozen=True, slots=True)
class LongScaling:
    """How LongRoPE does it within the trained context: each pair of dimensions has a divisor of its own."""

    kind: ClassVar[Literal["longrope"]] = "longrope"
    divisors: tuple[float, ...]
    factor: float
    """How much longer the whole context is than the trained one."""
    original_max_position_embeddings: int
    attention_factor: float | None = None
    """As above."""

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.original_max_position_embeddings == 1:
            raise ValueError("original_max_position_embeddings must be above 1, got 1")

    def attention(self, log: Callable[[float], float]) -> float:
        """What sines and cosines are multiplied by. Raises ValueError where that has no value."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + log(self.factor) / log(self.original_max_position_embeddings))


AnyScaling = LinearScaling | RopeScaling | YarnScaling | LongScaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model. The defaults are the shape of the shipped base model."""

    vocab_size: int = 2048
    context_length: int = 128
    n_layer: int = 4
    n_head: int = 8
    n_kv_head: int = 1
    d_model: int = 256
    d_hidden: int = 512
    own_head_dim: int | None = None
    """The size of a head where it is not ``d_model / n_head``."""
    rope_theta: float = 10_000.0
    rope_scaling: AnyScaling | None = None
    norm_eps: float = 1e-5
    tied_embeddings: bool = True
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether what attention adds to the residual stream has one."""
    head_norm: bool = False
    """Whether each query and key head is normed before it is turned."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} must be an integer of at least 1, got {value!r}")
            if field.type == "float" and (type(value) not in (int, float) or not 0 < value < float("inf")):
                raise ValueError(f"{field.name} must be a number above 0, got {value!r}")
            if field.type == "bool" and type(value) is not bool:
                raise ValueError(f"{field.name} must be true or false, got {value!r}")
        own = self.own_head_dim
        if own is not None and (type(own) is not int or own < 1 or own % 2):
            raise ValueError(f"head_dim must be an even number above 0, got {own!r}")
        if own is None and (self.d_model % self.n_head or self.head_dim % 2):
            came = f"{self.d_model} and {self.n_head}"
            raise ValueError(f"d_model must be n_head times an even number, got {came}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")
        if isinstance(self.rope_scaling, LongScaling) and len(self.rope_scaling.divisors) != self.head_dim // 2:
            divisors, half = len(self.rope_scaling.divisors), self.head_dim // 2
            raise ValueError(f"the factors of longrope must be {half}, half the head size, got {divisors}")

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.d_model // self.n_head

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Features of all queries, of all keys and of all values."""
        key_or_value = self.n_kv_head * self.head_dim
        return self.n_head * self.head_dim, key_or_value, key_or_value

    @property
    def multiplications(self) -> int:
        """Multiplications for one token, without attention: the numbers in all matrices."""
        heads = sum(self.qkv_sizes) + self.qkv_sizes[0]
        return self.n_layer * self.d_model * (heads + 3 * self.d_hidden) + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """The numbers in all matrices, embedding included; without the vectors of norms and biases, a thousandth."""
        return self.multiplications + (0 if self.tied_embeddings else self.vocab_size * self.d_model)
