"""GGUF files that hold no model which is served: refused by the key or the tensor, before anything is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.family_checkpoints import Kind
from support.gguf_files import Content, byte_level_tokens, write_gguf
from support.tokenizer_kinds import llama_3

from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import load
from minilab_gen.models.source import checkpoint_of


def _llama_3() -> dict[str, Any]:
    return byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0, eos_token_id=1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "gemma9", r"general.architecture must be one of llama, .*, got 'gemma9'"),
        ("general.type", "adapter", r"general.type must be model, got 'adapter'"),
        ("split.count", 3, r"is one of 3 files; .* llama-gguf-split --merge"),
        ("llama.expert_count", 8, r"llama.expert_count must be 0, got 8"),
        ("llama.attention.causal", False, r"llama.attention.causal must be True, got False"),
        ("llama.logit_scale", 0.5, r"the key llama.logit_scale is not understood .*: 0.5"),
        ("llama.context_length", None, r"lacks the key llama.context_length"),
        ("llama.context_length", "128", r"llama.context_length must be one number of at least 1, got '128'"),
        ("llama.feed_forward_length", [80, 96], r"llama.feed_forward_length must be one number"),
        ("llama.attention.value_length", 32, r"llama.attention.value_length must be 8, .*, got 32"),
        ("llama.rope.dimension_count", 4, r"partial_rotary_factor must be 1.0, got 0.5"),
        ("llama.rope.scaling.type", "spiral", r"rope.scaling.type must be none, .*, got 'spiral'"),
        ("llama.attention.layer_norm_rms_epsilon", True, r"rms_epsilon must be of the type float, got True"),
        ("llama.embedding_length", 128, r"token_embd.weight must be \(330, 128\), got \(330, 64\)"),
        ("llama.block_count", 3, r"lacks the tensor blk.2.attn_norm.weight, which must be \(64,\)"),
        ("llama.block_count", 2**32 - 1, r"lacks the tensor blk.2.attn_norm.weight, which must be \(64,\)"),
        ("llama.block_count", 1, r"no part of this model takes blk.1.attn_q.weight and 8 more"),
    ],
)
def test_what_is_no_served_model_is_refused_by_its_key_or_tensor(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3(), Content(keys={key: value}))

    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint_of(written.path).check()
    assert str(written.path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "blk.0.attn_sinks.weight", "wte"])
def test_a_tensor_that_no_part_takes_is_named(tmp_path: Path, name: str) -> None:
    content = Content(tensors={name: np.ones(8, dtype=np.float32)})
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3(), content)

    with pytest.raises(CheckpointError, match=f"no part of this model takes {name}"):
        checkpoint_of(written.path).check()


def test_a_granite_without_positions_is_refused(tmp_path: Path) -> None:
    content = Content(keys={"granite.rope.scaling.finetuned": False})
    written = write_gguf(tmp_path / "model.gguf", Kind("Granite"), _llama_3(), content)

    with pytest.raises(CheckpointError, match=r"granite.rope.scaling.finetuned must be True, got False"):
        checkpoint_of(written.path).check()


def test_a_folder_that_only_holds_such_a_file_names_it(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3())

    with pytest.raises(CheckpointError, match=r"has no config.json, but a GGUF file, .*: .*/model.gguf"):
        checkpoint_of(tmp_path).check()
    with pytest.raises(CheckpointError, match=r"there is no file .*/other.gguf"):
        checkpoint_of(written.path.with_name("other.gguf")).check()


def test_the_name_of_a_file_need_not_say_what_it_is(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "0a1b2c", Kind("Llama"), _llama_3())

    assert checkpoint_of(written.path).check().vocab_size == 330


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gemma3.attention.sliding_window_pattern", 5, "gemma3.attention.sliding_window_pattern must be 6, got 5"),
        ("gemma3.final_logit_softcapping", 30.0, "gemma3.final_logit_softcapping must be 0.0, got 30.0"),
    ],
)
def test_a_gemma_of_another_pattern_or_with_capped_logits_is_refused(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    kind = Kind("Gemma3", {"head_dim": 8, "query_pre_attn_scalar": 8})
    written = write_gguf(tmp_path / "model.gguf", kind, _llama_3(), Content(keys={key: value}))

    with pytest.raises(CheckpointError, match=message):
        checkpoint_of(written.path).check()


def test_gains_that_are_to_be_counted_from_one_must_be_float32(tmp_path: Path) -> None:
    kind = Kind("Gemma3", {"head_dim": 8, "query_pre_attn_scalar": 8})
    content = Content(tensors={"output_norm.weight": np.ones(64, dtype=np.float16)})
    written = write_gguf(tmp_path / "model.gguf", kind, _llama_3(), content)

    with pytest.raises(CheckpointError, match=r"output_norm\.weight must be of the type F32, got float16"):
        load(written.path, threads=1)
