"""Rotary positions are transformers', wherever ``config.json`` says what they are."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support.config_contents import ARCHITECTURES, content, written
from support.family_checkpoints import SHAPE

from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config_json import config_of
from minilab_gen.models.rotary import Rotary

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
ONE_ROPE = [name for name in ARCHITECTURES if name not in ("Gemma3", "Phi3", "GPT2", "GPTNeoX")]
TYPED = [name for name in ONE_ROPE if name.startswith(("Qwen", "Smol"))]
"""Families that know types of layers."""
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


HEADS = {"head_dim": 8}
PARTLY = {"partial_rotary_factor": 0.5}
HALVES = {**LONG, "short_factor": DIVISORS[:2], "long_factor": DIVISORS[:2]}
ROPES_OF_PARTS: list[tuple[str, dict[str, Any]]] = [
    ("GPTNeoX", {}),
    ("GPTNeoX", {"rotary_emb_base": 5e5, "rotary_pct": 0.5}),
    ("GPTNeoX", {"rope_theta": 5e5, "rotary_pct": 1.0}),
    ("GPTNeoX", {"rotary_emb_base": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("GPTNeoX", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, **PARTLY}, "rotary_pct": 1.0}),
    ("GPTNeoX", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, **PARTLY}, **FULL}),
    ("Phi3", {}),
    ("Phi3", {"rope_theta": 5e5}),
    ("Phi3", {"rope_theta": 5e5, **PARTLY}),
    ("Phi3", {"rope_scaling": {**LONG, "type": "su"}}),
    ("Phi3", {"rope_scaling": HALVES, **PARTLY, "original_max_position_embeddings": 32}),
    ("Phi3", {"rope_parameters": {**HALVES, **PARTLY, "rope_theta": 5e5}, "original_max_position_embeddings": 64}),
]
ROPES_OF_GEMMA: dict[str, dict[str, Any]] = {
    "none": {},
    "top level": {"rope_theta": 5e5, "rope_local_base_freq": 7e3},
    "scaling": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 7e3},
    "parameters": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
        }
    },
    "one alone": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
    "the same": {"rope_theta": 1e4},
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", ONE_ROPE)
def test_rotary_positions_are_those_of_transformers_wherever_they_are_given(
    tmp_path: Path, name: str, rope: str
) -> None:
    stored = content(name, **ROPES[rope], **(FULL if name in TYPED else {}))
    theirs = written(tmp_path, stored)
    modeling = importlib.import_module(f"transformers.models.{theirs.model_type}.modeling_{theirs.model_type}")
    positions = torch.arange(SHAPE["max_position_embeddings"])[None]
    cosine, _ = getattr(modeling, f"{name}RotaryEmbedding")(theirs)(torch.zeros(1), positions)
    ours = read_config(tmp_path)

    assert (Rotary(ours, ours.rope).cosine - cosine[0]).abs().max() < CLOSE
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path) == ours


@pytest.mark.parametrize("rope", ROPES_OF_PARTS)
def test_ropes_of_a_share_of_each_head_are_those_of_transformers_wherever_they_are_given(
    tmp_path: Path, rope: tuple[str, dict[str, Any]]
) -> None:
    name, given = rope
    theirs = written(tmp_path, content(name, **given))
    modeling = importlib.import_module(f"transformers.models.{theirs.model_type}.modeling_{theirs.model_type}")
    positions = torch.arange(SHAPE["max_position_embeddings"])[None]
    cosine, _ = getattr(modeling, f"{name}RotaryEmbedding")(theirs)(torch.zeros(1), positions)
    ours = read_config(tmp_path)

    assert (Rotary(ours, ours.rope).cosine - cosine[0, : ours.context_length]).abs().max() < CLOSE
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path) == ours


@pytest.mark.parametrize("rope", ROPES_OF_GEMMA)
def test_ropes_by_type_of_layer_are_those_of_transformers_wherever_they_are_given(tmp_path: Path, rope: str) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

    types = ["full_attention", "sliding_attention"]
    theirs = written(tmp_path, content("Gemma3", **ROPES_OF_GEMMA[rope], head_dim=8, layer_types=types))
    positions, made = torch.arange(SHAPE["max_position_embeddings"])[None], Gemma3RotaryEmbedding(theirs)
    ours = read_config(tmp_path)

    for kind, own in zip(types, (ours.rope, ours.windowed_rope or ours.rope), strict=True):
        cosine, _ = made(torch.zeros(1), positions, kind)
        assert (Rotary(ours, own).cosine - cosine[0]).abs().max() < CLOSE
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
    assert (Rotary(ours, ours.rope).cosine - cosine[0]).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3"])
def test_positions_given_by_layer_are_those_of_the_type_that_every_layer_has(name: str) -> None:
    """Release 5.24 of transformers cannot load such a folder."""
    used, unused = {**LLAMA3, "rope_theta": 5e5}, {"rope_type": "yarn", "factor": 4.0}
    by_layer = {"full_attention": used, "sliding_attention": unused}

    ours = config_of(content(name, rope_parameters=by_layer, **FULL))

    assert ours == config_of(content(name, rope_parameters=used))


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_the_first_releases_of_phi_3_had_other_names_for_longrope(kind: str) -> None:
    named = {key: value for key, value in LONG.items() if key != "rope_type"} | {"type": kind}

    assert config_of(content("Phi3", rope_scaling=named)) == config_of(content("Phi3", rope_scaling=LONG))
