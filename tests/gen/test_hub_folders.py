"""Folders as they are on the Hub: what files say beside the model, and what old releases stored, changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoint_folders import change_json
from support.family_checkpoints import KINDS, largest_gap, write

from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import load

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
GPT2 = {
    "attn_pdrop": 0.1,
    "n_ctx": 128,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
SAID_BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "Phi-4-mini-instruct": (
        "phi-4-mini",
        {
            "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoTokenizer": "Xenova/gpt-4o"},
            "embd_pdrop": 0.0,
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
            "attention_bias": False,
            "sliding_window": 262_144,
        },
    ),
    "distilgpt2": ("gpt-2", GPT2 | {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}),
    "gpt2-medium": ("gpt-2", GPT2 | {"n_special": 0, "predict_special_tokens": True}),
    "gpt2-xl": ("gpt-2", GPT2 | {"output_past": True}),
    "dolly-v2": ("pythia", {"custom_pipelines": {"text-generation": {"impl": "instruct_pipeline.X", "pt": "Auto"}}}),
    "gemma-3 of a fine-tuner": (
        "gemma-3",
        {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid", "use_bidirectional_attention": False},
    ),
}
"""By a model of the Hub: its kind, and keys of its ``config.json`` that only say what it is anyway."""


@pytest.mark.parametrize("model", SAID_BESIDE)
def test_logits_are_those_of_transformers_whatever_the_config_says_beside_the_model(tmp_path: Path, model: str) -> None:
    kind, keys = SAID_BESIDE[model]
    write(tmp_path, KINDS[kind])
    change_json(tmp_path / "config.json", **keys)

    assert largest_gap(tmp_path) < CLOSE


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("phi-4-mini", "full_attn_mod", 2),
        ("phi-4-mini", "interpolate_factor", 2),
        ("phi-4-mini", "lm_head_bias", True),
        ("gemma-3", "hidden_act", "silu"),
        ("gpt-2", "n_special", 2),
    ],
)
def test_a_key_beside_the_model_that_says_another_is_refused(tmp_path: Path, kind: str, key: str, value: Any) -> None:
    write(tmp_path, KINDS[kind])
    change_json(tmp_path / "config.json", **{key: value})

    with pytest.raises(CheckpointError, match=f"{key} must be .*, got {value!r}"):
        load(tmp_path)


@pytest.mark.parametrize("mask", [torch.bool, torch.uint8, torch.float16])
def test_masks_of_pythia_are_no_matter_whatever_they_are_stored_as(tmp_path: Path, mask: torch.dtype) -> None:
    write(tmp_path, KINDS["pythia"])
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        attention = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{attention}.bias"] = torch.ones(1, 1, 128, 128).tril().to(mask)
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{attention}.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})

    assert largest_gap(tmp_path) < CLOSE
