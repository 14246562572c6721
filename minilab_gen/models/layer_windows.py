"""Over how many positions each layer attends, by the keys of each family. It must not know torch."""

from __future__ import annotations

from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.stored_config import StoredConfig
from minilab_gen.request import shown

_FULL, _SLIDING = "full_attention", "sliding_attention"
_TYPES: Final = (_FULL, _SLIDING)


def no_layer(config: StoredConfig) -> dict[str, Any]:
    """Every layer sees all positions."""
    types = config.stored.get("layer_types")
    if types and any(kind != _FULL for kind in types):
        raise CheckpointError(f"layer_types must be {_FULL} in every layer, got {shown(sorted(set(map(str, types))))}")
    return {}


def every_layer(config: StoredConfig) -> dict[str, Any]:
    """All have the window, where one is given: Mistral, Phi-3."""
    window = _window(config)
    _layer_types(config)  # transformers does not look at them here
    return _windows([window] * config.layers, config)


def later_layers(config: StoredConfig) -> dict[str, Any]:
    """Those that ``layer_types`` names, else those behind the first few, if a window is to be used: Qwen."""
    window = _window(config) if _used(config) else None
    first = config["max_window_layers"]
    types = _layer_types(config)
    if types is None:
        if window is not None and (type(first) is not int or first < 0):
            raise CheckpointError(f"max_window_layers must be an integer of at least 0, got {shown(first)}")
        return _windows([window if window and layer >= first else None for layer in range(config.layers)], config)
    return _windows(_by_type(types, window), config)


def windowed_types(config: StoredConfig) -> dict[str, Any]:
    """Those that ``layer_types`` names, else all but every sixth: Gemma 3. Scores are scaled by a key of its own."""
    window, types = _window(config), _layer_types(config)
    if types is None:
        every = config.first("sliding_window_pattern", "_sliding_window_pattern")
        if type(every) is not int or every < 1:
            raise CheckpointError(f"sliding_window_pattern must be an integer of at least 1, got {shown(every)}")
        types = [_FULL if (layer + 1) % every == 0 else _SLIDING for layer in range(config.layers)]
    scalar, width = config["query_pre_attn_scalar"], config["hidden_size"]
    for key, value in (("query_pre_attn_scalar", scalar), ("hidden_size", width)):
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise CheckpointError(f"{key} must be a number above 0, got {shown(value)}")
    scales = {"attention_scale": scalar**-0.5, "embedding_scale": width**0.5}
    return {**_windows(_by_type(types, window), config, keep=True), **scales}


def unturned_layers(config: StoredConfig) -> dict[str, Any]:
    """Those that ``layer_types`` names, else those without rotary positions, if a window is to be used: SmolLM3."""
    window, types = _window(config) if _used(config) else None, _layer_types(config)
    if types is None:
        unturned = layers_without_positions(config)
        types = [_SLIDING if window and layer in unturned else _FULL for layer in range(config.layers)]
    return _windows(_by_type(types, window), config)


def layers_without_positions(config: StoredConfig) -> tuple[int, ...]:
    """Of SmolLM3: those marked by 0 in ``no_rope_layers``, else every fourth."""
    marks, every = config.stored.get("no_rope_layers"), config["no_rope_layer_interval"]
    if marks is None:
        if type(every) is not int or every < 1:
            raise CheckpointError(f"no_rope_layer_interval must be an integer of at least 1, got {shown(every)}")
        return tuple(layer for layer in range(config.layers) if (layer + 1) % every == 0)
    if not isinstance(marks, list) or len(marks) < config.layers or not set(map(str, marks)) <= {"0", "1"}:
        raise CheckpointError(f"no_rope_layers must be a list of 0 or 1 for every layer, got {shown(marks)}")
    return tuple(layer for layer, turned in enumerate(marks[: config.layers]) if not turned)


def _used(config: StoredConfig) -> bool:
    used = config["use_sliding_window"]
    if type(used) is not bool:
        raise CheckpointError(f"use_sliding_window must be true or false, got {shown(used)}")
    return used


def _window(config: StoredConfig) -> int | None:
    window = config["sliding_window"]
    if window is None:
        return None
    if type(window) is not int or window < 1:
        raise CheckpointError(f"sliding_window must be an integer of at least 1, got {shown(window)}")
    return window


def _layer_types(config: StoredConfig) -> list[str] | None:
    types = config.stored.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != config.layers or not all(kind in _TYPES for kind in types):
        came = sorted(set(map(str, types))) if isinstance(types, list) else types
        raise CheckpointError(
            f"layer_types must be {_FULL} or {_SLIDING} for each of {config.layers} layers, got {shown(came)}"
        )
    return types


def _by_type(types: list[str], window: int | None) -> list[int | None]:
    if window is None and _SLIDING in types:
        raise CheckpointError(f"layer_types has {_SLIDING}, so sliding_window must be given and used, got none")
    return [window if kind == _SLIDING else None for kind in types]


def _windows(windows: list[int | None], config: StoredConfig, *, keep: bool = False) -> dict[str, Any]:
    """The field, without windows that end no attention unless they say which positions a layer has."""
    context = config.context
    if not keep and type(context) is int:
        windows = [window if window is not None and window < context else None for window in windows]
    return {"windows": tuple(windows)} if any(windows) else {}
