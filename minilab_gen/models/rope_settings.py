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
from minilab_gen.models.layer_windows import layers_without_positions
from minilab_gen.models.rope_config import (
    AnyScaling,
    LinearScaling,
    LongScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from minilab_gen.models.stored_config import StoredConfig
from minilab_gen.request import shown

_log = logging.getLogger(__name__)

ROPE_KEYS: Final = frozenset(
    {"original_max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}
)
"""Keys of ``config.json`` that are read here."""

_LAYER_TYPES: Final = frozenset({"chunked_attention", "full_attention", "linear_attention", "sliding_attention"})

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


class _Rope(NamedTuple):
    """Rotary positions, and for how many tokens they hold."""

    rope: RopeConfig
    context: Any


def whole_heads(config: StoredConfig) -> dict[str, Any]:
    """One rope for all layers and whole heads. Raises CheckpointError, as all of these."""
    given = _scaling_of(config)
    _check_whole(config.stored)
    by_layer = {key: value for key, value in given.items() if key in _LAYER_TYPES and value is not None}
    whole = {key: value for key, value in given.items() if key not in _LAYER_TYPES}
    if not by_layer:
        return _fields(_read(whole, config))
    used = by_layer.get("full_attention")
    if not isinstance(used, dict):
        raise CheckpointError(f"rope_parameters must be given for full_attention, got {shown(sorted(by_layer))}")
    found = _read(used, config)
    if (whole or not config.stored.get("layer_types")) and found != (other := _read(whole, config)):
        raise CheckpointError(
            f"rope_parameters must be the same for full_attention as for the whole model, got {_named(found)} and "
            f"{_named(other)}: transformers would use the latter"
        )
    return _fields(found)


def no_layer_turned(config: StoredConfig) -> dict[str, Any]:
    """The same, with some layers that have none: SmolLM3."""
    unturned = layers_without_positions(config)
    return {**whole_heads(config), **({"unturned_layers": unturned} if unturned else {})}


def partly_turned(config: StoredConfig) -> dict[str, Any]:
    """One rope for all layers, of a share of each head: Phi-3, GPT-NeoX."""
    given = {_ALIASES.get(key, key): value for key, value in _scaling_of(config).items()}
    if config.stored.get("model_type") == "phi3":
        kind = _first(given.get("rope_type"), given.pop("type", None))
        given["rope_type"] = "longrope" if kind in ("su", "yarn") else kind  # of the first releases
    found = _read(given, config, theta=_first(config["rotary_emb_base"], config["rope_theta"]))
    share = _first(given.get("partial_rotary_factor"), config.first("partial_rotary_factor", "rotary_pct"), 1.0)
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise CheckpointError(f"partial_rotary_factor must be above 0 and at most 1, got {shown(share)}")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config["head_dim"] or (width // heads if type(width) is type(heads) is int and heads > 0 else 0)
    dim = int(head_dim * share) if type(head_dim) is int else 0
    if share < 1 and dim % 2:
        rule = f"partial_rotary_factor must turn an even number of the {head_dim} dimensions of a head"
        raise CheckpointError(f"{rule}, got {shown(share)}, which turns {dim}")
    return {**_fields(found), **({"rope_dim": dim} if share < 1 else {})}


def by_layer_type(config: StoredConfig) -> dict[str, Any]:
    """One rope for layers that see all positions, another one for those with a window: Gemma 3."""
    by_layer = config.stored.get("rope_parameters") or {}
    scaling = config.stored.get("rope_scaling") or {}
    _check_whole(config.stored)
    if not isinstance(by_layer, dict) or not set(by_layer) <= _LAYER_TYPES or not isinstance(scaling, dict):
        raise CheckpointError(f"rope_parameters must be given by type of layer, got {shown(by_layer)}")
    full, windowed = (by_layer.get(kind) or {} for kind in ("full_attention", "sliding_attention"))
    whole = _read({**full, **scaling}, config)
    local = _read(windowed, config, theta=config["rope_local_base_freq"])
    return {**_fields(whole), **({"windowed_rope": local.rope} if local.rope != whole.rope else {})}


def learned(_config: StoredConfig) -> dict[str, Any]:
    """No rope: positions are embedded like tokens, as in GPT-2."""
    return {"learned_positions": True, "rope_dim": 0}


_ALIASES: Final = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}


def _scaling_of(config: StoredConfig) -> dict[str, Any]:
    """What is said of the rope beside its base."""
    given = config.stored.get("rope_scaling") or config.stored.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"rope_scaling must be an object, got {given!r}")
    return given


def _fields(found: _Rope) -> dict[str, Any]:
    return {"rope": found.rope, "context_length": found.context}


def _read(given: Mapping[str, Any], config: StoredConfig, theta: Any = None) -> _Rope:
    base = _first(given.get("rope_theta"), theta, config["rope_theta"])
    kind = _first(given.get("rope_type"), given.get("type"), "default")
    if kind not in _KEYS:
        raise CheckpointError(f"the rope type must be one of {', '.join(_KEYS)}, got {kind!r}")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", _TRAINED_CONTEXT} | _KEYS[kind]
    for key, value in given.items():
        if key not in known and value is not None:
            raise CheckpointError(f"the key {key} is not understood in a rope of type {kind!r}: {shown(value)}")
    context = config.context
    if kind in _PLAIN:
        return _Rope(_rope(base, None), context)
    trained = _first(config[_TRAINED_CONTEXT], given.get(_TRAINED_CONTEXT), context)  # as in transformers
    numbers = {key: given[key] for key in _KEYS[kind] if given.get(key) is not None}
    try:
        if kind in _FOLLOWS and "factor" not in numbers:
            numbers["factor"] = context / trained
        if missing := sorted(_KEYS[kind] - _MAY_LACK - numbers.keys()):
            raise CheckpointError(f"a rope of type {kind!r} must have {', '.join(missing)}")
        scaling = _scaling(kind, numbers, trained)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"a rope of type {kind!r}: {error}") from error
    return _Rope(_rope(base, scaling), _whole_context(scaling, numbers, context))


def _rope(theta: Any, scaling: AnyScaling | None) -> RopeConfig:
    try:
        return RopeConfig(theta, scaling)
    except ValueError as error:
        raise CheckpointError(str(error)) from error


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
    why = "a longer sequence has other factors in longrope, which would turn all its earlier keys anew"
    _log.warning("the context is %d tokens and not %d: %s", trained, context, why)
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


def _check_whole(stored: Mapping[str, Any]) -> None:
    """Refuse positions that turn a part of a head."""
    ropes = [stored.get("rope_scaling"), stored.get("rope_parameters")]
    by_layer = [value for rope in ropes if isinstance(rope, dict) for value in rope.values()]
    for given in (stored, *ropes, *by_layer):
        share = given.get("partial_rotary_factor") if isinstance(given, Mapping) else None
        if share not in (None, 1.0):
            raise CheckpointError(f"partial_rotary_factor must be 1.0, got {share!r}")


def _named(found: _Rope) -> str:
    theta, scaling = found.rope.theta, found.rope.scaling
    return f"rope_theta {theta}" + ("" if scaling is None else f" scaled by {scaling.factor}")


def _first(*values: Any) -> Any:
    """The first value that is given, if any is."""
    return next((value for value in values if value is not None), None)
