"""What config.json says: each family has its parts, and what is of no family is refused by name."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.family_checkpoints import Kind, config_class, write

from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import load, read_stop_ids
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.config_json import config_of, described
from minilab_gen.models.families import FAMILIES
from minilab_gen.models.rope_config import RopeConfig, RopeScaling

# transformers asks for newer Python features in ways that warn, and its warnings are not about our code.
pytestmark = pytest.mark.filterwarnings("ignore")

BASIC = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 48,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_what_each_family_has_of_its_own_is_seen() -> None:
    shapes = {name: config_of({**(BASIC if "GPT" not in name else {}), **_named(name)}) for name in FAMILIES}
    of_neox = {"layer_norm", "feed_forward_bias", "qkv_bias", "output_bias", "parallel"}

    found = {
        name: {field.name for field in fields(shape) if getattr(shape, field.name) is True} - {"tied_embeddings"}
        for name, shape in shapes.items()
    }
    usual = {"pre_norm", "gated"}
    assert found == {
        "LlamaForCausalLM": usual,
        "MistralForCausalLM": usual,
        "Qwen2ForCausalLM": usual | {"qkv_bias"},
        "Qwen3ForCausalLM": usual | {"head_norm"},
        "Gemma3ForCausalLM": usual | {"gain_from_one", "post_norm", "head_norm"},
        "SmolLM3ForCausalLM": usual,
        "GraniteForCausalLM": usual,
        "Olmo2ForCausalLM": {"gated", "post_norm", "row_norm"},
        "Phi3ForCausalLM": usual,
        "GPT2LMHeadModel": {"pre_norm", "learned_positions"} | of_neox - {"parallel"},
        "GPTNeoXForCausalLM": {"pre_norm"} | of_neox,
    }
    assert shapes["Gemma3ForCausalLM"].embedding_scale == 8
    assert shapes["SmolLM3ForCausalLM"].unturned_layers == ()  # every fourth, and there are two
    assert shapes["GPTNeoXForCausalLM"].turned_dim == 24


def _named(name: str) -> dict[str, Any]:
    return {"architectures": [name], "model_type": FAMILIES[name].model_type}


# What config.json says


@pytest.mark.parametrize(
    ("changes", "theta", "scaled"),
    [
        ({}, 10_000.0, False),
        ({"rope_theta": 5e5}, 5e5, False),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, True),
        ({"rope_scaling": {**LLAMA3, "rope_type": None, "type": "llama3"}}, 10_000.0, True),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, False),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, True),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 1e6}}, 1e6, False),
    ],
)
def test_rotary_positions_are_read_as_every_release_of_transformers_wrote_them(
    changes: dict[str, Any], theta: float, scaled: bool
) -> None:
    config = config_of({**BASIC, **changes})

    assert config.rope == RopeConfig(theta, RopeScaling(8.0, 1.0, 4.0, 8192) if scaled else None)


@pytest.mark.parametrize(("window", "slides"), [(None, False), (32, False), (4096, False), (20, True)])
def test_a_window_of_attention_slides_and_does_not_end_the_context(window: int | None, slides: bool) -> None:
    config = config_of({**BASIC, **_named("MistralForCausalLM"), "sliding_window": window})

    assert config.context_length == 32
    assert config.windows == ((20, 20) if slides else ())


@pytest.mark.parametrize(
    ("family", "biased"),
    [(name, False) for name in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")]
    + [(name, True) for name in ("LlamaForCausalLM", "Qwen3ForCausalLM")],
)
def test_a_config_that_is_written_is_the_one_that_is_read(family: str, biased: bool) -> None:
    config = config_of({**BASIC, **_named(family), "attention_bias": biased, "head_dim": 24, "rope_scaling": LLAMA3})

    assert config_of(described(config)) == config
    assert described(config)["architectures"] == [family]


def test_a_model_that_no_family_has_is_not_written() -> None:
    with pytest.raises(CheckpointError, match="no family has head_norm True, qkv_bias True"):
        described(ModelConfig(qkv_bias=True, head_norm=True))


ROPE = "the rope type must be one of default, dynamic, linear, llama3, yarn, longrope, got"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
TRAINED = {"original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
FULL = ["full_attention"] * 2
NEOX = {**_named("GPTNeoXForCausalLM"), "num_key_value_heads": None}
SLIDING = ["sliding_attention"] * 2
ANY = "the key .* is not understood and may stand for another computation"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["OPTForCausalLM"]}, "the architecture must be one of LlamaForCausalLM, .*got OPTForCausalLM"),
    ({"architectures": ["MixtralForCausalLM"]}, "the architecture must be one of .*, got MixtralForCausalLM"),
    ({"architectures": None}, "the architecture must be one of .*, got none named"),
    ({"architectures": "LlamaForCausalLM"}, "the architecture must be one of"),
    ({"architectures": None}, r'got none named; add "architectures": \["LlamaForCausalLM"\]$'),
    ({"architectures": None, "model_type": "opt"}, "got none named$"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "got LlamaForSequenceClassification$"),
    ({"architectures": ["LlamaForCausalLM", "Other"]}, "got LlamaForCausalLM, Other"),
    ({"model_type": "granite"}, "model_type must be 'llama' for LlamaForCausalLM, got 'granite'"),
    ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, f"{ROPE} 'ntk'"),
    ({"rope_scaling": {"type": "linear"}}, "a rope of type 'linear' must have factor"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "a rope of type 'linear': factor must be a number above 0"),
    ({"rope_scaling": {**YARN, "low_freq_factor": 1.0}}, "the key low_freq_factor is not understood in a rope of"),
    ({"rope_scaling": {**YARN, "beta_fast": 0}}, "a rope of type 'yarn': beta_fast must be a number above 0, got 0"),
    ({"rope_scaling": {**YARN, "truncate": 1}}, "a rope of type 'yarn': truncate must be true or false, got 1"),
    ({"rope_scaling": {**LONG, "short_factor": None}}, "a rope of type 'longrope' must have short_factor"),
    ({"rope_scaling": {**LONG, "short_factor": 2.0}}, "short_factor must be a list of numbers, got 2.0"),
    ({"rope_scaling": {**LONG, "short_factor": [1.0, 0, 1, 1]}}, "short_factor must be a number above 0, got 0"),
    (
        {"rope_scaling": {**LONG, "short_factor": [1.0] * 3}},
        "the factors of longrope must be 4, half the turned dimensions",
    ),
    ({"rope_scaling": {**LONG, "original_max_position_embeddings": 1}}, "must be above 1, got 1"),
    (
        {"rope_scaling": {**LONG, "factor": 2.0, **TRAINED}, "max_position_embeddings": "long"},
        "max_position_embeddings must be an integer of at least 1, got 'long'",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        "the same for full_attention as for the whole model, got rope_theta 1000000.0 and rope_theta 10000.0: transf",
    ),
    ({"rope_parameters": {"sliding_attention": {}}}, "rope_parameters must be given for full_attention, got"),
    ({"rope_parameters": {"full_attention": {"rope_type": "ntk"}}, "layer_types": FULL}, f"{ROPE} 'ntk'"),
    (
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor must be 1",
    ),
    ({"rope_scaling": {**LLAMA3, "attention_factor": 2.0}}, "the key attention_factor is not understood in a rope"),
    ({"rope_scaling": {**LLAMA3, "factor": None}}, "a rope of type 'llama3' must have factor"),
    ({"rope_scaling": {**LLAMA3, "factor": -1}}, "a rope of type 'llama3': factor must be a number above 0, got -1"),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4}}, "low_freq_factor must be below high_freq_factor, got 4 and 4"),
    ({"rope_scaling": "llama3"}, "rope_scaling must be an object, got 'llama3'"),
    ({"quantization_config": {"quant_method": "awq"}}, "the key quantization_config is not understood"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0, got 0.5"),
    ({"final_logit_softcapping": 30.0}, "the key final_logit_softcapping is not understood"),
    ({"residual_multiplier": 0.2}, "the key residual_multiplier is not understood"),
    ({"num_local_experts": 8}, "the key num_local_experts is not understood"),
    ({"sliding_window": 16}, "the key sliding_window is not understood"),
    ({**_named("MistralForCausalLM"), "sliding_window": "all"}, "sliding_window must be an integer of at least 1"),
    ({**_named("Phi3ForCausalLM"), "sliding_window": 0}, "sliding_window must be an integer of at least 1, got 0"),
    (
        {**_named("Qwen3ForCausalLM"), "use_sliding_window": True, "max_window_layers": "1"},
        "max_window_layers must be an integer of at least 0, got '1'",
    ),
    ({**_named("Qwen2ForCausalLM"), "use_sliding_window": 1}, "use_sliding_window must be true or false, got 1"),
    ({**_named("Qwen2ForCausalLM"), "layer_types": SLIDING}, "sliding_window must be given and used, got none"),
    ({**_named("Qwen2ForCausalLM"), "layer_types": SLIDING[:1]}, "for each of 2 layers, got .'sliding_attention'"),
    ({**_named("Qwen2ForCausalLM"), "layer_types": ["linear"] * 2}, "layer_types must be full_attention or sliding_"),
    ({**_named("Gemma3ForCausalLM"), "sliding_window_pattern": 0}, "sliding_window_pattern must be an integer of at"),
    ({**_named("Gemma3ForCausalLM"), "query_pre_attn_scalar": -1}, "query_pre_attn_scalar must be a number above 0"),
    ({**_named("Gemma3ForCausalLM"), "final_logit_softcapping": 30.0}, "the key final_logit_softcapping is not unders"),
    ({**_named("Gemma3ForCausalLM"), "use_bidirectional_attention": True}, "must be False, got True"),
    ({**_named("Gemma3ForCausalLM"), "rope_parameters": {"rope_theta": 1e6}}, "must be given by type of layer"),
    (
        {**_named("SmolLM3ForCausalLM"), "no_rope_layers": [1]},
        "no_rope_layers must be a list of 0 or 1 for every layer",
    ),
    ({**_named("SmolLM3ForCausalLM"), "no_rope_layers": [1, 2]}, "must be a list of 0 or 1 for every layer, got"),
    ({**_named("SmolLM3ForCausalLM"), "no_rope_layer_interval": 0}, "no_rope_layer_interval must be an integer of at"),
    ({**_named("GraniteForCausalLM"), "residual_multiplier": 0}, "residual_multiplier must be a number above 0, got 0"),
    ({**NEOX, "rotary_pct": 1.5}, "partial_rotary_factor must be above 0 and at most 1"),
    (
        {**NEOX, "rotary_pct": 0.4},
        "partial_rotary_factor must turn an even number of the 8 dimensions of a head, got .*, which turns 3",
    ),
    ({**NEOX, "use_parallel_residual": "no"}, "use_parallel_residual must be true or false"),
    ({**_named("GPT2LMHeadModel"), "hidden_size": 64}, ANY),
    ({"use_sliding_window": True}, "use_sliding_window must be False, got True"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types must be full_attention in every layer"),
    ({"hidden_act": "relu"}, "hidden_act must be one of silu, .*, got 'relu'"),
    ({**_named("MistralForCausalLM"), "attention_bias": True}, "attention_bias must be False, got True"),
    ({**_named("Qwen2ForCausalLM"), "attention_bias": True}, "attention_bias must be False, got True"),
    ({"attention_bias": "all"}, "attention_bias must be true or false, got 'all'"),
    ({**_named("Qwen2ForCausalLM"), "mlp_bias": True}, "mlp_bias must be False, got True"),
    ({"mlp_bias": 1}, "mlp_bias must be true or false, got 1"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, got 0"),
    ({"num_attention_heads": "8"}, "num_attention_heads must be an integer of at least 1, got '8'"),
    ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads, got 8 and 3"),
    ({"head_dim": 7}, "head_dim must be an even number above 0, got 7"),
    ({"head_dim": "8"}, "head_dim must be an even number above 0, got '8'"),
    ({"hidden_size": 60}, "hidden_size must be num_attention_heads times an even number, got 60 and 8"),
    ({"rope_theta": "large"}, "rope_theta must be a number above 0, got 'large'"),
    ({"rope_theta": 0}, "rope_theta must be a number above 0, got 0"),
    ({"rms_norm_eps": 0}, "norm_eps must be a number above 0, got 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_config_that_is_not_served_is_refused_with_the_rule(changes: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in {**BASIC, **changes}.items() if value is not None}

    with pytest.raises(CheckpointError, match=message):
        config_of(changed)


@pytest.mark.parametrize(("key", "value"), [("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False)])
def test_other_scores_of_gpt_2_are_refused(key: str, value: bool) -> None:
    stored = {**_named("GPT2LMHeadModel"), "n_embd": 64, "n_head": 4}
    assert config_of(stored | {key: not value}) == config_of(stored)

    with pytest.raises(CheckpointError, match=f"{key} must be {not value}, got {value}"):
        config_of(stored | {key: value})


@pytest.mark.parametrize(
    "extra",
    [
        {"quantization_config": None, "anything_new": None},
        {"torch_dtype": "bfloat16", "use_cache": True, "pretraining_tp": 1, "transformers_version": "4.42.3"},
        {"attention_dropout": 0.0, "mlp_bias": False, "rope_interleaved": False, "is_llama_config": True},
    ],
)
def test_what_does_not_touch_the_logits_is_no_matter(extra: dict[str, Any]) -> None:
    assert config_of({**BASIC, **extra}) == config_of(BASIC)


# What transformers writes for others


@pytest.mark.parametrize(("family", "config"), [("OPTForCausalLM", "OPTConfig"), ("Gemma2ForCausalLM", "Gemma2Config")])
def test_a_folder_of_another_architecture_is_refused_by_name(tmp_path: Path, family: str, config: str) -> None:
    import transformers

    getattr(transformers, config)(architectures=[family]).save_pretrained(tmp_path)

    with pytest.raises(CheckpointError, match=f"config.json: the architecture must be one of .*, got {family}"):
        load(tmp_path)


def test_every_config_that_transformers_writes_for_a_family_is_read(tmp_path: Path) -> None:
    for name, family in FAMILIES.items():
        config = config_class(name.removesuffix("ForCausalLM").removesuffix("LMHeadModel"))(architectures=[name])
        config.save_pretrained(tmp_path / name)

        assert read_config(tmp_path / name).d_model == config.hidden_size, family.model_type


def test_stop_ids_that_transformers_wrote_are_read(tmp_path: Path) -> None:
    model = write(tmp_path, Kind("Llama"))
    model.generation_config.eos_token_id = [2, 7]
    model.generation_config.save_pretrained(tmp_path)

    assert read_stop_ids(tmp_path) == (2, 7)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 2


def test_a_family_with_other_keys_is_refused_in_their_words() -> None:
    with pytest.raises(CheckpointError, match="n_positions must be an integer of at least 1, got '1024'"):
        config_of({**_named("GPT2LMHeadModel"), "n_positions": "1024"})
