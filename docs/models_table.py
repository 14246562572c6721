"""Writes the tables of docs/models.md anew: what is served and what is refused, by what the code says.

``python docs/models_table.py`` from the project's root; a test sees that nobody forgot to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from minilab_gen.errors import CheckpointError
from minilab_gen.models.config_json import config_of
from minilab_gen.models.families import FAMILIES, Family
from minilab_gen.models.layer_windows import every_layer, later_layers, unturned_layers, windowed_types
from minilab_gen.models.rope_settings import by_layer_type, learned, no_layer_turned, partly_turned

DOCUMENT: Final = Path(__file__).parent / "models.md"

PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "qkv_bias": "biases of queries, keys and values",
        "output_bias": "biases of what attention adds",
        "feed_forward_bias": "biases of the feed-forward part",
        "head_norm": "norms of query and key heads",
        "row_norm": "norms of all queries and of all keys",
        "gain_from_one": "gains of norms counted from 1",
        "post_norm": "norms behind attention and feed-forward",
        "pre_norm": "no norms before them",
        "layer_norm": "layer norms",
        "gated": "no gates",
        "naming": "",
        "parallel": "attention and feed-forward side by side",
    }
)
"""What the fields of a ModelConfig mean where a family sets them otherwise than usual."""

READERS: Final[Mapping[Callable[..., Any], str]] = MappingProxyType(
    {
        every_layer: "a window in all layers",
        later_layers: "a window in some layers",
        windowed_types: "a window in some layers, scaled embeddings and scores",
        unturned_layers: "a window in layers without positions",
        no_layer_turned: "layers without positions",
        partly_turned: "positions of a part of each head",
        by_layer_type: "other positions in layers with a window",
        learned: "learned positions",
    }
)

_LLAMA: Final = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 8}
_GEMMA: Final = {"architectures": ["Gemma3ForCausalLM"]}
REFUSED: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("another architecture", {"architectures": ["MixtralForCausalLM"]}),
    ("experts", _LLAMA | {"num_local_experts": 8}),
    ("capped logits", _GEMMA | {"final_logit_softcapping": 30.0}),
    ("attention in both directions", _GEMMA | {"use_bidirectional_attention": True}),
    ("another activation", _LLAMA | {"hidden_act": "relu2"}),
    ("positions of a part of a head, where the family has none", _LLAMA | {"partial_rotary_factor": 0.5}),
    ("another way to scale positions", _LLAMA | {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}),
    (
        "a type of attention that is none of these",
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["chunked"] * 32},
    ),
    ("scores scaled by layer", {"architectures": ["GPT2LMHeadModel"], "scale_attn_by_inverse_layer_idx": True}),
    ("a number that is none", _LLAMA | {"num_hidden_layers": "2"}),
)
"""Of each kind one config.json, as far as it matters."""


def served() -> Iterator[str]:
    """The rows of all families."""
    yield "| architecture in `config.json` | models | its layers have, or may have by a key |"
    yield "| --- | --- | --- |"
    for name, family in FAMILIES.items():
        yield f"| `{name}` | {family.models} | {'; '.join(_traits(family)) or 'nothing else'} |"


def refused() -> Iterator[str]:
    """What is said of each kind that is not served."""
    yield "| what | one line |"
    yield "| --- | --- |"
    for what, stored in REFUSED:
        try:
            config_of(stored)
        except CheckpointError as error:
            said = re.sub(r"one of .*?, got", "one of ..., got", str(error))
            yield f"| {what} | {said} |"
        else:
            raise AssertionError(f"{what} is served")


def _traits(family: Family) -> Iterator[str]:
    yield from (PARTS[part] for part in family.parts if PARTS[part])
    yield from (f"`{key}`" for key in family.flags)
    yield from (f"`{key}`" for field, key in family.keys.items() if "scale" in field or "divisor" in field)
    yield from (READERS[reader] for reader in (family.read_ropes, family.read_windows) if reader in READERS)
    activation = family.defaults[family.activation_key]
    if activation != "silu":
        yield f"`{activation}`"


def written(text: str) -> str:
    """The document with its tables as they must be."""
    for name, rows in (("served", served()), ("refused", refused())):
        begin, end = f"<!-- {name}: docs/models_table.py -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n".join(rows) + "\n" + end + after
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
