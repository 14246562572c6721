"""Every key of ``config.json``, given or left out, means here what it means to transformers."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoint_folders import change_json
from support.family_checkpoints import SHAPE, Kind, largest_gap, reload, write

from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.families import FAMILIES, config_of
from minilab_gen.models.rotary import Rotary

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
NAMES = [name.removesuffix("ForCausalLM") for name in FAMILIES]
FULL = {"layer_types": ["full_attention"] * SHAPE["num_hidden_layers"]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHORT = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
OLD = {"type": "llama3", **{key: value for key, value in LLAMA3.items() if key != "rope_type"}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DIVISORS = [1.0, 1.5, 2.25, 4.0]
LONG = {
    "rope_type": "longrope",
    "short_factor": DIVISORS,
    "long_factor": DIVISORS,
    "original_max_position_embeddings": 32,
}
ROPES: dict[str, dict[str, Any]] = {
    "none": {},
    "top level": {"rope_theta": 5e5},
    "null": {"rope_theta": 5e5, "rope_scaling": None, "rope_parameters": None},
    "empty": {"rope_scaling": {}, "rope_theta": 5e5},
    "scaling": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "scaling of old": {"rope_theta": 5e5, "rope_scaling": OLD},
    "scaling with a base": {"rope_theta": 7.0, "rope_scaling": {**LLAMA3, "rope_theta": 5e5}},
    "parameters": {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    "parameters beside a base": {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "parameters without a base": {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
    "scaling before parameters": {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 5e5}},
    "trained context at top level": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 64},
    "trained context without scaling": {"original_max_position_embeddings": 64},
    "no trained context": {"rope_scaling": SHORT, "rope_theta": 5e5},
    "whole heads": {"partial_rotary_factor": 1.0, "rope_theta": 5e5},
    "whole heads in parameters": {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 5e5}},
    "linear": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "linear of old": {"rope_scaling": {"type": "linear", "factor": 4}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "yarn": {"rope_theta": 1e6, "rope_scaling": YARN},
    "yarn with all that it may have": {
        "rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False}
    },
    "yarn with weights": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.4}},
    "yarn that divides nothing": {"rope_scaling": {**YARN, "factor": 1.0}},
    "longrope": {"rope_scaling": LONG, "head_dim": 8},
    "longrope with its own attention": {
        "rope_scaling": {**LONG, "attention_factor": 1.2, "factor": 8.0},
        "head_dim": 8,
    },
    "by layer as for all": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e5,
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": None,
        },
    },
}
"""Rotary positions in all places where releases of transformers have put them."""


def content(name: str, **more: Any) -> dict[str, Any]:
    architecture = f"{name}ForCausalLM"
    return {"architectures": [architecture], "model_type": FAMILIES[architecture].model_type, **SHAPE} | more


def written(folder: Path, stored: dict[str, Any]) -> Any:
    """The configuration that transformers reads from a folder with this content."""
    import transformers

    (folder / "config.json").write_text(json.dumps(stored))
    config = getattr(transformers, stored["architectures"][0].removesuffix("ForCausalLM") + "Config")
    return config.from_json_file(folder / "config.json")


def as_ours(theirs: Any, given: ModelConfig) -> ModelConfig:
    """What a configuration of transformers means, with what it does not say taken from ours."""
    head_dim = getattr(theirs, "head_dim", None)
    follows = head_dim is None or head_dim * theirs.num_attention_heads == theirs.hidden_size
    kinds = set(getattr(theirs, "layer_types", None) or ())
    assert kinds <= {"full_attention"}
    window = theirs.sliding_window if theirs.model_type == "mistral" else None
    return dataclasses.replace(
        given,
        vocab_size=theirs.vocab_size,
        context_length=min(window or theirs.max_position_embeddings, theirs.max_position_embeddings),
        n_layer=theirs.num_hidden_layers,
        n_head=theirs.num_attention_heads,
        n_kv_head=theirs.num_key_value_heads,
        d_model=theirs.hidden_size,
        d_hidden=theirs.intermediate_size,
        own_head_dim=None if follows else head_dim,
        rope_theta=theirs.rope_parameters["rope_theta"],
        norm_eps=theirs.rms_norm_eps,
        tied_embeddings=theirs.tie_word_embeddings,
    )


def keys_of(name: str) -> list[str]:
    """All keys that transformers may write for a family."""
    import transformers

    defaults = getattr(transformers, f"{name}Config")()
    declared = {field.name for field in dataclasses.fields(defaults)}
    generation = set(transformers.GenerationConfig().to_dict())
    return sorted(declared | set(defaults.to_dict()) | generation)


# What is left out


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_is_left_out_means_what_it_means_to_transformers(tmp_path: Path, name: str) -> None:
    heads = {"num_attention_heads": 32, "hidden_size": 128, "head_dim": 8}  # which fit the defaults of the others
    full = content(name, **heads, sliding_window=64, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_theta=5e5)
    full = {key: value for key, value in full.items() if key in keys_of(name) or key in ("model_type", "rope_theta")}
    for key in full:
        if key in ("model_type", "architectures"):
            continue
        stored = {other: value for other, value in full.items() if other != key}
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
    """Which is shorter than the context here, and left to be seen in logits: within the window they are the same."""
    write(tmp_path, Kind("Mistral", {"max_position_embeddings": 4100}))
    change_json(tmp_path / "config.json", sliding_window=None)  # the key goes

    assert read_config(tmp_path).context_length == reload(tmp_path).config.sliding_window == 4096
    assert largest_gap(tmp_path) < CLOSE


# What is given


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_transformers_may_write_is_known(name: str) -> None:
    import transformers

    defaults = {**transformers.GenerationConfig().to_dict(), **getattr(transformers, f"{name}Config")().to_dict()}
    assert {"rope_parameters", "dtype", "top_k", "vocab_size"} <= set(keys_of(name))
    for key in keys_of(name):
        value = defaults.get(key)
        stored = content(name) | {key: 1 if value is None and key not in defaults else value}
        if key not in content(name):
            assert config_of(stored).vocab_size == SHAPE["vocab_size"], key


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", NAMES)
def test_rotary_positions_are_those_of_transformers_wherever_they_are_given(
    tmp_path: Path, name: str, rope: str
) -> None:
    stored = content(name, **ROPES[rope], **(FULL if name.startswith("Qwen") else {}))
    theirs = written(tmp_path, stored)
    modeling = importlib.import_module(f"transformers.models.{theirs.model_type}.modeling_{theirs.model_type}")
    positions = torch.arange(SHAPE["max_position_embeddings"])[None]
    cosine, _ = getattr(modeling, f"{name}RotaryEmbedding")(theirs)(torch.zeros(1), positions)
    ours = read_config(tmp_path)

    assert (Rotary(ours).cosine - cosine[0]).abs().max() < CLOSE
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path) == ours


def test_a_context_ends_where_longrope_would_turn_all_keys_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = content("Llama", rope_scaling={**LONG, "long_factor": [8.0] * 4})
    theirs = written(tmp_path, stored)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    ours = read_config(tmp_path)
    cosine, _ = LlamaRotaryEmbedding(theirs)(torch.zeros(1), torch.arange(32)[None])

    assert ours.context_length == 32
    assert "the context is 32 tokens and not 128" in caplog.text
    assert (Rotary(ours).cosine - cosine[0]).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3"])
def test_positions_given_by_layer_are_those_of_the_type_that_every_layer_has(name: str) -> None:
    """Release 5.24 of transformers cannot load such a folder."""
    used, unused = {**LLAMA3, "rope_theta": 5e5}, {"rope_type": "yarn", "factor": 4.0}
    by_layer = {"full_attention": used, "sliding_attention": unused}

    ours = config_of(content(name, rope_parameters=by_layer, **FULL))

    assert ours == config_of(content(name, rope_parameters=used))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Llama", {"rope_theta": 5e5, "rope_scaling": OLD}),
        ("Mistral", {"original_max_position_embeddings": 64, "rope_scaling": LLAMA3, "sliding_window": 128}),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 16}),
        ("Qwen3", {"rope_parameters": {"rope_theta": 5e5}, "use_sliding_window": True, "sliding_window": 128}),
    ],
)
def test_a_served_folder_is_served_after_transformers_saved_it_again(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    write(first, Kind(name))
    stored = json.loads((first / "config.json").read_text())
    kept = {key: value for key, value in stored.items() if key not in ("rope_parameters", "layer_types")}
    (first / "config.json").write_text(json.dumps(kept | changes))

    assert largest_gap(first) < CLOSE
    reload(first).save_pretrained(again)

    assert read_config(again) == read_config(first)
    assert largest_gap(again) < CLOSE
