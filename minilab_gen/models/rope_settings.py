"""How ``config.json`` says what rotary positions are, in the places where releases of transformers have put it.

Older ones have ``rope_theta`` beside ``rope_scaling``; newer ones have both in ``rope_parameters``, which may be given
for each type of layer. It must not know torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config import RopeScaling
from minilab_gen.request import shown

ROPE_KEYS: Final = frozenset(
    {"original_max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}
)
"""Keys of ``config.json`` that are read here."""

LAYER_TYPES: Final = frozenset({"chunked_attention", "full_attention", "linear_attention", "sliding_attention"})

_DEFAULT_THETA: Final = 10_000.0
"""What transformers takes where none is given, in all families that are served."""

_SCALING: Final = {field.name for field in fields(RopeScaling)}
_TRAINED_CONTEXT: Final = "original_max_position_embeddings"

Rope = tuple[Any, RopeScaling | None]
"""The base of rotary positions, and how they are scaled."""


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
    if kind not in ("default", "llama3"):
        raise CheckpointError(f"the rope type must be 'default' or 'llama3', got {kind!r}")
    _check_whole(rope)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", _TRAINED_CONTEXT}
    known |= _SCALING if kind == "llama3" else set()
    for key, value in rope.items():
        if key not in known and value is not None:
            raise CheckpointError(f"the key {key} is not understood in a rope of type {kind!r}: {shown(value)}")
    if kind == "default":
        return theta, None
    trained = _first(stored.get(_TRAINED_CONTEXT), rope.get(_TRAINED_CONTEXT), context)  # as in transformers
    given = {**rope, _TRAINED_CONTEXT: trained}
    missing = sorted(key for key in _SCALING if given.get(key) is None)
    if missing:
        raise CheckpointError(f"a rope of type 'llama3' must have {', '.join(missing)}")
    try:
        return theta, RopeScaling(**{key: given[key] for key in _SCALING})
    except ValueError as error:
        raise CheckpointError(f"a rope of type 'llama3': {error}") from error


def _check_whole(given: Mapping[str, Any]) -> None:
    """Refuse positions that turn a part of a head."""
    share = given.get("partial_rotary_factor")
    if share not in (None, 1.0):
        raise CheckpointError(f"partial_rotary_factor must be 1.0, got {share!r}")


def _named(rope: Rope) -> str:
    theta, scaling = rope
    return f"rope_theta {theta}" + ("" if scaling is None else f" scaled by {scaling.factor}")


def _first(*values: Any) -> Any:
    """The first value that is given, if any is."""
    return next((value for value in values if value is not None), None)
