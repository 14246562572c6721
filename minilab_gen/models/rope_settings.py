"""How ``config.json`` says what rotary positions are, in the places where releases of transformers have put it.

Older ones have ``rope_theta`` beside ``rope_scaling``; newer ones have both in ``rope_parameters``, which may be given
for each type of layer. It must not know torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, NamedTuple

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import AnyScaling, LinearScaling, LongScaling, RopeScaling, YarnScaling
from minilab_gen.request import shown

_log = logging.getLogger(__name__)

ROPE_KEYS: Final = frozenset(
    {"original_max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}
)
"""Keys of ``config.json`` that are read here."""

LAYER_TYPES: Final = frozenset({"chunked_attention", "full_attention", "linear_attention", "sliding_attention"})

_DEFAULT_THETA: Final = 10_000.0
"""What transformers takes where none is given, in all families that are served."""

_TRAINED_CONTEXT: Final = "original_max_position_embeddings"

_PLAIN: Final = ("default", "dynamic")
"""Types without scaling; ``dynamic`` begins only behind the context that is served."""

_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "default": frozenset(),
    "dynamic": frozenset({"factor"}),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(field.name for field in fields(YarnScaling)) - {_TRAINED_CONTEXT},
    "longrope": frozenset({"short_factor", "long_factor", "factor", "attention_factor"}),
}
"""The keys that belong to each type."""

_MAY_LACK: Final = frozenset({"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"})
_FOLLOWS: Final = {"yarn", "longrope"}
"""Types whose factor follows from both contexts where it is not given."""


class Rope(NamedTuple):
    """The base of rotary positions, how they are scaled, and for how many tokens that holds."""

    theta: Any
    scaling: AnyScaling | None
    context: Any


def read_rope(stored: Mapping[str, Any], context: Any) -> Rope:
    """What the content of ``config.json`` gives for a model that reads ``context`` tokens. Raises CheckpointError."""
    rope = stored.get("rope_scaling") or stored.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"rope_scaling must be an object, got {rope!r}")
    _check_whole(stored)
    by_layer = {key: value for key, value in rope.items() if key in LAYER_TYPES and value is not None}
    whole = {key: value for key, value in rope.items() if key not in LAYER_TYPES}
    if not by_layer:
        return _read(whole, stored, context)
    used = by_layer.get("full_attention")  # which every layer has in the families that are served
    if not isinstance(used, dict):
        raise CheckpointError(f"rope_parameters must be given for full_attention, got {shown(sorted(by_layer))}")
    found = _read(used, stored, context)
    if (whole or not stored.get("layer_types")) and found != (other := _read(whole, stored, context)):
        raise CheckpointError(
            f"rope_parameters must be the same for full_attention as for the whole model, got {_named(found)} and "
            f"{_named(other)}: transformers would use the latter"
        )
    return found


def _read(rope: Mapping[str, Any], stored: Mapping[str, Any], context: Any) -> Rope:
    theta = _first(rope.get("rope_theta"), stored.get("rope_theta"), _DEFAULT_THETA)
    kind = _first(rope.get("rope_type"), rope.get("type"), "default")
    if kind not in _KEYS:
        raise CheckpointError(f"the rope type must be one of {', '.join(_KEYS)}, got {kind!r}")
    _check_whole(rope)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", _TRAINED_CONTEXT} | _KEYS[kind]
    for key, value in rope.items():
        if key not in known and value is not None:
            raise CheckpointError(f"the key {key} is not understood in a rope of type {kind!r}: {shown(value)}")
    if kind in _PLAIN:
        return Rope(theta, None, context)
    trained = _first(stored.get(_TRAINED_CONTEXT), rope.get(_TRAINED_CONTEXT), context)  # as in transformers
    given = {key: rope[key] for key in _KEYS[kind] if rope.get(key) is not None}
    try:
        if kind in _FOLLOWS and "factor" not in given:
            given["factor"] = context / trained
        if missing := sorted(_KEYS[kind] - _MAY_LACK - given.keys()):
            raise CheckpointError(f"a rope of type {kind!r} must have {', '.join(missing)}")
        scaling = _scaling(kind, given, trained)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"a rope of type {kind!r}: {error}") from error
    return Rope(theta, scaling, _whole_context(scaling, given, context))


def _scaling(kind: str, given: Mapping[str, Any], trained: Any) -> AnyScaling:
    """Raises ValueError and TypeError for what does not make one."""
    match kind:
        case "linear":
            return LinearScaling(**given)
        case "llama3":
            return RopeScaling(**given, original_max_position_embeddings=trained)
        case "yarn":
            return YarnScaling(**given, original_max_position_embeddings=trained)
        case _:
            short = given["short_factor"]
            if not isinstance(short, list):
                raise TypeError(f"short_factor must be a list of numbers, got {shown(short)}")
            return LongScaling(tuple(short), given["factor"], trained, given.get("attention_factor"))


def _whole_context(scaling: AnyScaling, given: Mapping[str, Any], context: Any) -> Any:
    """The context in which angles stay as they are. Where LongRoPE's long factors differ, it ends before they begin.

    All keys would have to be turned anew as a sequence outgrows the trained context.
    """
    trained = scaling.original_max_position_embeddings if isinstance(scaling, LongScaling) else context
    if type(context) is not int or trained >= context or given.get("long_factor") == given.get("short_factor"):
        return context
    _log.warning("the context is %d tokens and not %d: behind them longrope has other factors", trained, context)
    return trained


def described_scaling(scaling: AnyScaling | None) -> dict[str, Any] | None:
    """How ``config.json`` says it."""
    if scaling is None:
        return None
    given = {key: value for key, value in asdict(scaling).items() if value is not None}
    if isinstance(scaling, LongScaling):
        divisors = list(given.pop("divisors"))
        given |= {"short_factor": divisors, "long_factor": divisors}
    return {"rope_type": scaling.kind, **given}


def _check_whole(given: Mapping[str, Any]) -> None:
    """Refuse positions that turn a part of a head."""
    share = given.get("partial_rotary_factor")
    if share not in (None, 1.0):
        raise CheckpointError(f"partial_rotary_factor must be 1.0, got {share!r}")


def _named(rope: Rope) -> str:
    return f"rope_theta {rope.theta}" + ("" if rope.scaling is None else f" scaled by {rope.scaling.factor}")


def _first(*values: Any) -> Any:
    """The first value that is given, if any is."""
    return next((value for value in values if value is not None), None)
