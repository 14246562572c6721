"""How a GGUF file says what rotary positions are, in the words of ``config.json``.

Llama 3's way to slow angles down, and LongRoPE's, stand there as tensors: a divisor for each pair of dimensions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.gguf_header import GgufHeader
from minilab_gen.request import shown

_DIVISORS: Final = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS: Final = (_DIVISORS, _SHORT, _LONG)
"""Tensors that are no weights, and are read here."""

_TRAINED_CONTEXTS: Final = (8192, 32)
_LOW, _HIGH = 1.0, 4.0
"""What Llama 3's folders say; a file has only what follows from it."""

_SAME: Final = 1e-4
"""Share by which a divisor may differ from the one that follows: they were computed with other roundings."""


def rope_of(header: GgufHeader, name: str, context: int, head_dim: int) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``. Raises CheckpointError for what no ``config.json`` says."""
    theta = header.get(f"{name}.rope.freq_base", float) or 10_000.0
    divisors, scaling = _learned(header, name, context, theta, head_dim), _scaling(header, name, context)
    if divisors and scaling:
        raise CheckpointError(
            f"{header.path}: {name}.rope.scaling.type must be none beside {next(iter(_present(header)))}, "
            f"got {scaling['rope_type']}"
        )
    return {"rope_theta": theta, "rope_scaling": divisors or scaling}


def _scaling(header: GgufHeader, name: str, context: int) -> dict[str, Any] | None:
    """What the keys say."""
    prefix = f"{name}.rope.scaling"
    kind = header.get(f"{prefix}.type", str) or "linear"
    factor = header.get(f"{prefix}.factor", float) or header.get(f"{name}.rope.scale_linear", float) or 1.0
    if kind == "none" or (kind == "longrope" and _SHORT in header.tensors) or (kind == "linear" and factor == 1):
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{header.path}: {prefix}.type must be none, linear, yarn or longrope, got {shown(kind)}")
    sharper = header.get(f"{prefix}.attn_factor", float)
    if sharper not in (None, 1.0):
        raise CheckpointError(f"{header.path}: {prefix}.attn_factor must be 1 for {kind}, got {sharper}")
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    found: dict[str, Any] = {"rope_type": kind, "factor": factor}
    found["original_max_position_embeddings"] = header.get(f"{prefix}.original_context_length", int) or context
    for end in ("fast", "slow"):
        if (turns := header.get(f"{prefix}.yarn_beta_{end}", float)) is not None:
            found[f"beta_{end}"] = turns
    return found


def _present(header: GgufHeader) -> list[str]:
    return [tensor for tensor in ROPE_TENSORS if tensor in header.tensors]


def _learned(header: GgufHeader, name: str, context: int, theta: float, head_dim: int) -> dict[str, Any] | None:
    """What the tensors say."""
    if _DIVISORS in header.tensors:
        divisors = _read(header, _DIVISORS, head_dim)
        if all(divisor == 1 for divisor in divisors):
            return None
        for trained in _TRAINED_CONTEXTS:
            if _follow(divisors, theta, trained):
                return _llama3(max(divisors), trained)
        return _longrope(divisors, divisors, context, 1.0, 1.0)
    if _SHORT not in header.tensors or _LONG not in header.tensors:
        return None
    trained = header.get(f"{name}.rope.scaling.original_context_length", int) or context
    sharper = header.get(f"{name}.rope.scaling.attn_factor", float)
    return _longrope(
        _read(header, _SHORT, head_dim), _read(header, _LONG, head_dim), trained, context / trained, sharper
    )


def _longrope(
    short: list[float], long: list[float], trained: int, factor: float, sharper: float | None
) -> dict[str, Any]:
    found = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": factor}
    return found | {"original_max_position_embeddings": trained, "attention_factor": sharper}


def _llama3(factor: float, trained: int) -> dict[str, Any]:
    found = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": trained}
    return found | {"low_freq_factor": _LOW, "high_freq_factor": _HIGH}


def _follow(divisors: Sequence[float], theta: float, trained: int) -> bool:
    """Whether divisors are Llama 3's for a trained context, so that its formula can be computed as everywhere else."""
    factor = max(divisors)
    for pair, divisor in enumerate(divisors):
        turns = trained * theta ** (-pair / len(divisors)) / math.tau
        share = min(max((turns - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
        if not math.isclose(divisor, 1 / ((1 - share) / factor + share), rel_tol=_SAME):
            return False
    return True


def _read(header: GgufHeader, name: str, head_dim: int) -> list[float]:
    """A divisor for each pair of dimensions of a head. Raises CheckpointError for a tensor that is something else."""
    tensor = header.tensors[name]
    if tensor.type != 0 or tensor.shape != (head_dim // 2,):
        rule = f"{name} must be {(head_dim // 2,)} numbers of the type F32"
        raise CheckpointError(f"{header.path}: {rule}, got {tensor.shape} of type {tensor.type}")
    with header.path.open("rb") as file:
        file.seek(tensor.start)
        found = struct.unpack(f"<{head_dim // 2}f", file.read(tensor.size))
    if not all(0 < divisor < math.inf for divisor in found):
        raise CheckpointError(f"{header.path}: all numbers of {name} must be above 0")
    return list(found)
