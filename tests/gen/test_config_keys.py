"""Every key of ``config.json``, given or left out, means here what it means to transformers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_folders import change_json
from support.config_contents import ARCHITECTURES, content, written
from support.family_checkpoints import SHAPE, Kind, config_class, largest_gap, reload, write

from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.config_json import config_of
from minilab_gen.models.families import FAMILIES
from minilab_gen.models.rope_config import RopeConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
NAMES = list(ARCHITECTURES)
OWN: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "rope_theta": 5e5,
        "rope_local_base_freq": 7e3,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 100,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "SmolLM3": {"no_rope_layers": [0, 1], "no_rope_layer_interval": 2, "use_sliding_window": True, "rope_theta": 5e5},
    "Granite": {
        "embedding_multiplier": 2.0,
        "residual_multiplier": 3.0,
        "attention_multiplier": 4.0,
        "logits_scaling": 5.0,
        "rope_theta": 5e5,
    },
    "Qwen2": {"use_sliding_window": True, "max_window_layers": 1, "rope_theta": 5e5},
    "Qwen3": {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 5e5},
    "GPT2": {"n_positions": 96, "n_embd": 96, "n_layer": 3, "n_head": 6, "n_inner": 50, "layer_norm_epsilon": 1e-3},
    "GPTNeoX": {"rotary_emb_base": 5e5, "rotary_pct": 0.5, "layer_norm_eps": 1e-3},
}
"""Keys of a family's own, none of them as it is where it is left out."""
FULL = {"layer_types": ["full_attention"] * SHAPE["num_hidden_layers"]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OLD = {"type": "llama3", **{key: value for key, value in LLAMA3.items() if key != "rope_type"}}
HEADS = {"head_dim": 8}
OF_TWO_LAYERS: dict[str, dict[str, Any]] = {"layer_types": FULL, "no_rope_layers": {"no_rope_layers": [1, 1]}}
OF_SHAPE = {"n_positions", "n_embd", "n_layer", "n_head", "head_dim", "query_pre_attn_scalar", "no_rope_layer_interval"}
"""Keys that cannot be 1."""


def windows_of(theirs: Any) -> tuple[int | None, ...]:
    """Which layers have a window that ends something."""
    kinds, window = getattr(theirs, "layer_types", None), getattr(theirs, "sliding_window", None)
    if theirs.model_type in ("mistral", "phi3"):
        kinds = ["sliding_attention"] * theirs.num_hidden_layers
    ends = window is not None and (theirs.model_type == "gemma3_text" or window < theirs.max_position_embeddings)
    windows = tuple(window if ends and kind == "sliding_attention" else None for kind in kinds or ())
    return windows if any(windows) else ()


def ropes_of(theirs: Any) -> dict[str, Any]:
    """The fields of ours that their rotary positions give, as far as these are not scaled."""
    if theirs.model_type == "gpt2":
        return {}
    given = theirs.rope_parameters
    if theirs.model_type == "gemma3_text":
        whole, local = (RopeConfig(given[kind]["rope_theta"]) for kind in ("full_attention", "sliding_attention"))
        return {"rope": whole, "windowed_rope": local if local != whole else None}
    share = given.get("partial_rotary_factor", 1.0)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    return {"rope": RopeConfig(given["rope_theta"]), "rope_dim": int(share * head_dim) if share < 1 else None}


def as_ours(theirs: Any, given: ModelConfig) -> ModelConfig:
    """What a configuration of transformers means, with what it does not say taken from ours."""
    head_dim = getattr(theirs, "head_dim", None)
    follows = head_dim is None or head_dim * theirs.num_attention_heads == theirs.hidden_size
    eps = (getattr(theirs, name, None) for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"))
    hidden = theirs.n_inner or 4 * theirs.n_embd if theirs.model_type == "gpt2" else theirs.intermediate_size
    own: dict[str, Any] = {}
    if theirs.model_type == "gemma3_text":
        own = {"attention_scale": theirs.query_pre_attn_scalar**-0.5, "embedding_scale": theirs.hidden_size**0.5}
    if theirs.model_type == "granite":
        own = {"attention_scale": theirs.attention_multiplier, "embedding_scale": theirs.embedding_multiplier}
        own |= {"residual_scale": theirs.residual_multiplier, "logit_divisor": theirs.logits_scaling}
    if theirs.model_type == "smollm3":
        own = {"unturned_layers": tuple(n for n, turned in enumerate(theirs.no_rope_layers) if not turned)}
    return dataclasses.replace(
        given,
        vocab_size=theirs.vocab_size,
        context_length=theirs.max_position_embeddings,
        n_layer=theirs.num_hidden_layers,
        n_head=theirs.num_attention_heads,
        n_kv_head=getattr(theirs, "num_key_value_heads", theirs.num_attention_heads),
        d_model=theirs.hidden_size,
        d_hidden=hidden,
        own_head_dim=None if follows else head_dim,
        norm_eps=next(value for value in eps if value is not None),
        tied_embeddings=theirs.tie_word_embeddings,
        windows=windows_of(theirs),
        **ropes_of(theirs),
        **own,
    )


def keys_of(name: str) -> list[str]:
    """All keys that transformers may write for a family."""
    import transformers

    defaults = config_class(name)()
    declared = {field.name for field in dataclasses.fields(defaults)}
    generation = set(transformers.GenerationConfig().to_dict())
    return sorted(declared | set(defaults.to_dict()) | generation)


# What is left out


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_is_left_out_means_what_it_means_to_transformers(tmp_path: Path, name: str) -> None:
    heads = {"num_attention_heads": 32, "hidden_size": 512, "head_dim": 16}  # which fit the defaults of the others
    full = content(name, **heads, **OWN.get(name, {"rope_theta": 5e5}), sliding_window=64, rms_norm_eps=1e-3)
    full |= {"tie_word_embeddings": not FAMILIES[ARCHITECTURES[name]].defaults["tie_word_embeddings"]}
    known = {*keys_of(name), *OWN.get(name, {}), "model_type", "rope_theta"}
    full = {key: value for key, value in full.items() if key in known}
    for key in full:
        if key in ("model_type", "architectures"):
            continue
        gone = {key, *(("layer_types", "no_rope_layers") if key in ("num_hidden_layers", "use_sliding_window") else ())}
        stored = {other: value for other, value in full.items() if other not in gone}
        ours = config_of(stored)

        assert ours == as_ours(written(tmp_path, stored), ours), key


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_that_says_nothing_is_that_of_its_family(tmp_path: Path, name: str) -> None:
    stored = {key: content(name)[key] for key in ("architectures", "model_type")}
    ours = config_of(stored)

    assert ours == as_ours(written(tmp_path, stored), ours)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
def test_as_many_key_heads_as_query_heads_are_what_null_means(tmp_path: Path, name: str) -> None:
    stored = content(name, num_key_value_heads=None)

    assert config_of(stored).n_kv_head == written(tmp_path, stored).num_key_value_heads == 8


def test_a_mistral_folder_without_a_window_has_that_of_its_family(tmp_path: Path) -> None:
    write(tmp_path, Kind("Mistral", {"max_position_embeddings": 4100}))
    change_json(tmp_path / "config.json", sliding_window=None)  # the key goes

    assert read_config(tmp_path).windows[0] == reload(tmp_path).config.sliding_window == 4096
    assert largest_gap(tmp_path) < CLOSE


# What is given


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_transformers_may_write_is_known(name: str) -> None:
    import transformers

    defaults = {**transformers.GenerationConfig().to_dict(), **config_class(name)().to_dict()}
    assert {"dtype", "top_k", "vocab_size"} <= set(keys_of(name))
    for key in keys_of(name):
        value = defaults.get(key)
        stored = (
            content(name) | {key: 1 if value is None and key not in defaults else value} | OF_TWO_LAYERS.get(key, {})
        )
        if key not in content(name) and key not in OF_SHAPE:
            assert config_of(stored).vocab_size == SHAPE["vocab_size"], key


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Llama", {"rope_theta": 5e5, "rope_scaling": OLD}),
        ("Mistral", {"original_max_position_embeddings": 64, "rope_scaling": LLAMA3, "sliding_window": 128}),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 16}),
        ("Gemma3", {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "head_dim": 8}),
        ("Gemma3", {"rope_local_base_freq": 3e3, "sliding_window": 16, "sliding_window_pattern": 2, "head_dim": 8}),
        ("SmolLM3", {"no_rope_layers": [0, 1], "rope_theta": 5e5}),
        ("Granite", {"logits_scaling": 3, "residual_multiplier": 0.5, "rope_theta": 5e5}),
        ("Olmo2", {"rope_theta": 5e5}),
        ("Phi3", {"rope_theta": 5e5, "sliding_window": 16}),
        ("GPT2", {"activation_function": "gelu"}),
        ("GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 5e5, "use_parallel_residual": False}),
        ("Qwen3", {"rope_parameters": {"rope_theta": 5e5}, "use_sliding_window": True, "sliding_window": 128}),
    ],
)
def test_a_served_folder_is_served_after_transformers_saved_it_again(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    write(first, Kind(name, {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128} if name == "GPT2" else HEADS))
    stored = json.loads((first / "config.json").read_text())
    kept = {key: value for key, value in stored.items() if key not in ("rope_parameters", "layer_types")}
    (first / "config.json").write_text(json.dumps(kept | changes))

    assert largest_gap(first) < CLOSE
    reload(first).save_pretrained(again)

    assert read_config(again) == read_config(first)
    assert largest_gap(again) < CLOSE
