"""Rotary positions and the ways to scale them, in numbers that are checked. It must know neither torch nor Redis."""

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
                name = "short_factor" if field.name == "divisors" else field.name
                raise ValueError(f"{name} must be a number above 0, got {number!r}")


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
    """What ``config.json`` calls ``short_factor``."""
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
class RopeConfig:
    """Rotary positions: the base of their angles, and how these are scaled."""

    theta: float = 10_000.0
    scaling: AnyScaling | None = None

    def __post_init__(self) -> None:
        if type(self.theta) not in (int, float) or not 0 < self.theta < float("inf"):
            raise ValueError(f"rope_theta must be a number above 0, got {self.theta!r}")
