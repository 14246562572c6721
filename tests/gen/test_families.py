"""The families of models: each computes what transformers computes, and what is of no family is refused by name."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from support.family_checkpoints import CONTEXT, KINDS, SHAPE, Kind, write
from torch import Tensor

from minilab_gen.engine import Engine, Sequence
from minilab_gen.errors import CheckpointError
from minilab_gen.generate import generate
from minilab_gen.kernels.decoder import WEIGHT_TYPES, WeightType
from minilab_gen.models.checkpoint import load, read_stop_ids
from minilab_gen.models.checkpoint_folder import read_config
from minilab_gen.models.config import ModelConfig, RopeScaling
from minilab_gen.models.families import FAMILIES, config_of, described
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.request import GenerationRequest, SamplingSettings

# transformers asks for newer Python features in ways that warn, and its warnings are not about our code.
pytestmark = pytest.mark.filterwarnings("ignore")

CLOSE = 1e-4
"""How far a logit of transformers may be from ours."""
STEPS = 64
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


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, KernelModel]:
    """A model of transformers and ours, read from the folder that it wrote."""
    folder = tmp_path_factory.mktemp("family")
    return write(folder, KINDS[request.param]), load(folder, threads=1)


def prompts() -> list[tuple[int, ...]]:
    dice = random.Random(0)
    return [tuple(dice.randrange(3, SHAPE["vocab_size"]) for _ in range(dice.randint(1, 63))) for _ in range(32)]


def run_together(
    model: KernelModel, requests: list[GenerationRequest], batch: int
) -> list[tuple[list[int], list[Tensor]]]:
    """The answers of an engine of so many slots, and the logits that each token was chosen from."""
    seen: dict[str, list[Tensor]] = {}
    engine = Engine(model, batch, on_logits=lambda s, row: seen.setdefault(s.name, []).append(row.clone()))
    sequences = [Sequence(str(index), request) for index, request in enumerate(requests)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.has_work:
        engine.step()
    return [(sequence.ids[len(sequence.request.prompt) :], seen[sequence.name]) for sequence in sequences]


def their_logits(model: Any, ids: Collection[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


# What is computed


def test_logits_are_those_of_transformers(pair: tuple[Any, KernelModel]) -> None:
    theirs, ours = pair
    ids = [index * 7 % SHAPE["vocab_size"] for index in range(CONTEXT)]

    with torch.no_grad():
        logits = ours(torch.tensor([ids]))[0][0]

    gap = (logits - their_logits(theirs, ids)).abs().max().item()
    assert gap < CLOSE
    assert logits.std().item() > 0.1  # they say something


def test_greedy_tokens_are_those_of_transformers(pair: tuple[Any, KernelModel]) -> None:
    theirs, ours = pair
    answers = run_together(ours, [GenerationRequest(prompt, STEPS) for prompt in prompts()], 32)

    for prompt, (tokens, _) in zip(prompts(), answers, strict=True):
        chosen = their_logits(theirs, [*prompt, *tokens[:-1]]).argmax(-1)[len(prompt) - 1 :]
        assert tokens == chosen.tolist()
        assert len(tokens) == STEPS


@pytest.mark.parametrize("weights", WEIGHT_TYPES)
def test_logits_have_the_same_bits_in_every_batch(
    pair: tuple[Any, KernelModel], weights: WeightType, tmp_path: Path
) -> None:
    theirs, ours = pair
    if weights != "float32":
        theirs.save_pretrained(tmp_path)
        ours = load(tmp_path, weights, threads=1)
    sampled = [SamplingSettings(temperature=0.8, seed=seed) for seed in range(32)]
    requests = [GenerationRequest(prompt, 16, settings) for prompt, settings in zip(prompts(), sampled, strict=True)]
    alone = [list(generate(ours, request.prompt, 16, request.settings)) for request in requests]

    for batch in (1, 7, 32):
        for steps, (tokens, rows) in zip(alone, run_together(ours, requests, batch), strict=True):
            assert tokens == [step.token_id for step in steps]
            assert all(torch.equal(row, step.logits) for row, step in zip(rows, steps, strict=True))


def test_what_each_family_has_of_its_own_is_seen() -> None:
    shapes = {name: config_of({**BASIC, **_named(name)}) for name in FAMILIES}

    assert [shapes[name].qkv_bias for name in FAMILIES] == [False, False, True, False]
    assert [shapes[name].head_norm for name in FAMILIES] == [False, False, False, True]
    assert [shapes[name].head_dim for name in FAMILIES] == [8, 8, 8, 128]


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

    assert config.rope_theta == theta
    assert config.rope_scaling == (RopeScaling(8.0, 1.0, 4.0, 8192) if scaled else None)


@pytest.mark.parametrize(("window", "context"), [(None, 32), (32, 32), (4096, 32), (20, 20)])
def test_a_window_of_attention_ends_the_context(
    caplog: pytest.LogCaptureFixture, window: int | None, context: int
) -> None:
    with caplog.at_level(logging.WARNING):
        config = config_of({**BASIC, **_named("MistralForCausalLM"), "sliding_window": window})

    assert config.context_length == context
    said = "the context is 20 tokens and not 32: attention over a sliding_window of 20 is full only within it"
    assert caplog.messages == ([said] if context < 32 else [])


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
    with pytest.raises(CheckpointError, match="no family has qkv_bias True, output_bias False, head_norm True"):
        described(ModelConfig(qkv_bias=True, head_norm=True))


ROPE = "the rope type must be one of default, dynamic, linear, llama3, yarn, longrope, got"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
TRAINED = {"original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
FULL = ["full_attention"] * 2
FROM = "use_sliding_window must be false, got true: layers from 1 on have a window of 16 tokens"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "the architecture must be one of LlamaForCausalLM, .*GPT2LMHeadModel"),
    ({"architectures": ["Gemma3ForCausalLM"]}, "the architecture must be one of .*, got Gemma3ForCausalLM"),
    ({"architectures": ["MixtralForCausalLM"]}, "the architecture must be one of .*, got MixtralForCausalLM"),
    ({"architectures": None}, "the architecture must be one of .*, got none named"),
    ({"architectures": "LlamaForCausalLM"}, "the architecture must be one of"),
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
    ({"rope_scaling": {**LONG, "short_factor": [1.0, 0, 1, 1]}}, "divisors must be a number above 0, got 0"),
    ({"rope_scaling": {**LONG, "short_factor": [1.0] * 3}}, "the factors of longrope must be 4, half the head size"),
    ({"rope_scaling": {**LONG, "original_max_position_embeddings": 1}}, "must be above 1, got 1"),
    (
        {"rope_scaling": {**LONG, "factor": 2.0, **TRAINED}, "max_position_embeddings": "long"},
        "context_length must be an integer of at least 1, got 'long'",
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
    ({**_named("Qwen2ForCausalLM"), "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 16}, FROM),
    ({**_named("Qwen3ForCausalLM"), "use_sliding_window": True, "max_window_layers": "1"}, "must be false, got true"),
    ({"use_sliding_window": True}, "use_sliding_window must be False, got True"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types must be full_attention in every layer"),
    ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
    ({**_named("MistralForCausalLM"), "attention_bias": True}, "attention_bias must be False, got True"),
    ({**_named("Qwen2ForCausalLM"), "attention_bias": True}, "attention_bias must be False, got True"),
    ({"attention_bias": "all"}, "attention_bias must be true or false, got 'all'"),
    ({"mlp_bias": True}, "mlp_bias must be False, got True"),
    ({"num_hidden_layers": 0}, "n_layer must be an integer of at least 1, got 0"),
    ({"num_attention_heads": "8"}, "n_head must be an integer of at least 1, got '8'"),
    ({"num_key_value_heads": 3}, "n_head must be a multiple of n_kv_head, got 8 and 3"),
    ({"head_dim": 7}, "head_dim must be an even number above 0, got 7"),
    ({"head_dim": "8"}, "head_dim must be an even number above 0, got '8'"),
    ({"hidden_size": 60}, "d_model must be n_head times an even number, got 60 and 8"),
    ({"rope_theta": "large"}, "rope_theta must be a number above 0, got 'large'"),
    ({"rope_theta": 0}, "rope_theta must be a number above 0, got 0"),
    ({"rms_norm_eps": 0}, "norm_eps must be a number above 0, got 0"),
    ({"tie_word_embeddings": "yes"}, "tied_embeddings must be true or false, got 'yes'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_config_that_is_not_served_is_refused_with_the_rule(changes: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in {**BASIC, **changes}.items() if value is not None}

    with pytest.raises(CheckpointError, match=message):
        config_of(changed)


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


@pytest.mark.parametrize(
    ("family", "config"), [("GPT2LMHeadModel", "GPT2Config"), ("Gemma3ForCausalLM", "Gemma3TextConfig")]
)
def test_a_folder_of_another_architecture_is_refused_by_name(tmp_path: Path, family: str, config: str) -> None:
    import transformers

    getattr(transformers, config)(architectures=[family]).save_pretrained(tmp_path)

    with pytest.raises(CheckpointError, match=f"config.json: the architecture must be one of .*, got {family}"):
        load(tmp_path)


def test_every_config_that_transformers_writes_for_a_family_is_read(tmp_path: Path) -> None:
    import transformers

    for name, family in FAMILIES.items():
        config = getattr(transformers, f"{name.removesuffix('ForCausalLM')}Config")(architectures=[name])
        config.save_pretrained(tmp_path / name)

        assert read_config(tmp_path / name).d_model == config.hidden_size, family.model_type


def test_stop_ids_that_transformers_wrote_are_read(tmp_path: Path) -> None:
    model = write(tmp_path, Kind("Llama"))
    model.generation_config.eos_token_id = [2, 7]
    model.generation_config.save_pretrained(tmp_path)

    assert read_stop_ids(tmp_path) == (2, 7)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 2
