"""The content of ``config.json`` together with what its family takes for keys that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MAY_BE_NULL: Final = frozenset({"num_key_value_heads", "sliding_window", "n_inner"})
"""Keys whose null is a value of its own: as many as query heads, none, and four times the model's size."""


class StoredConfig:
    """Keys of ``config.json``; ``config["key"]`` is the value, or the family's where it is left out."""

    def __init__(self, stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.stored, self._defaults = stored, defaults

    def __getitem__(self, key: str) -> Any:
        """The value; null is one of a few keys only."""
        value = self.stored.get(key)
        if value is None and not (key in self.stored and key in _MAY_BE_NULL):
            value = self._defaults.get(key)
        if value is None and key == "num_key_value_heads":
            return self["num_attention_heads"]  # every query head has a key head of its own
        if value is None and key == "n_inner":
            width = self["n_embd"]
            return 4 * width if type(width) is int else width
        return value

    def first(self, *keys: str) -> Any:
        """The value of the first key that is given, if any is, else of the first one that has a default."""
        given = next((self.stored[key] for key in keys if self.stored.get(key) is not None), None)
        if given is not None:
            return given
        return next((self._defaults[key] for key in keys if self._defaults.get(key) is not None), None)

    @property
    def layers(self) -> int:
        """How many layers there are; 0 where that is no number, which is refused elsewhere."""
        count = self.first("num_hidden_layers", "n_layer")
        return count if type(count) is int and count > 0 else 0

    @property
    def context(self) -> Any:
        """The context that is given."""
        return self.first("max_position_embeddings", "n_positions")
