"""Models in GGUF files: the same ids, logits and stop ids as the same numbers have in transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from minilab_worker.model_names import default_name
from minilab_worker.serving import load_served_model
from support.family_checkpoints import CONTEXT, Kind
from support.gguf_files import (
    Content,
    Type,
    byte_level_tokens,
    pieces_tokens,
    scores_of,
    write_gguf,
)
from support.tokenizer_kinds import llama_2, llama_3, qwen

from minilab_gen.generate import generate
from minilab_gen.models.checkpoint import fingerprint, load, read_stop_ids, stamps
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.rope_config import LinearScaling, LongScaling, RopeScaling, YarnScaling
from minilab_gen.models.source import checkpoint_of
from minilab_gen.models.torch_checkpoint import read_model


def _pieces() -> dict[str, Any]:
    return pieces_tokens(llama_2(), scores_of(llama_2()), bos_token_id=1, eos_token_id=2)


def _gemma() -> dict[str, Any]:
    return _pieces() | {"add_space_prefix": False}


def _llama_3() -> dict[str, Any]:
    return byte_level_tokens(llama_3(), "llama-bpe", bos_token_id=0, eos_token_id=1)


def _qwen() -> dict[str, Any]:
    return byte_level_tokens(qwen(), "qwen2", rows=352, eos_token_id=0, eot_token_id=2)


def _mixed(name: str) -> Any:
    """Types as a file of four bits has them: one for most, others where more depends on it."""
    if name.endswith(("ffn_down.weight", "attn_v.weight")):
        return Type.Q8_0
    return Type.F16 if name == "token_embd.weight" else Type.BF16 if "attn_k" in name else Type.Q4_0


@dataclass(frozen=True)
class Case:
    """A kind of model with a kind of tokenizer."""

    kind: Kind
    tokens: Callable[[], dict[str, Any]]
    content: Content = field(default_factory=Content)


_WIDE = {"intermediate_size": 96}  # a multiple of 32, as blocks of four bits need

_GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 1.5,
}

CASES = {
    "llama with pieces": Case(Kind("Llama", {"num_key_value_heads": 8}), _pieces),
    "llama of few bits, grouped heads": Case(
        Kind("Llama", {"num_key_value_heads": 2, **_WIDE}), _llama_3, Content(_mixed)
    ),
    "llama, tied, uneven heads": Case(
        Kind(
            "Llama",
            {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
        ),
        _llama_3,
    ),
    "llama with biases": Case(Kind("Llama", {"attention_bias": True, "head_dim": 24}), _pieces),
    "llama with biases everywhere": Case(Kind("Llama", {"attention_bias": True, "mlp_bias": True}), _llama_3),
    "granite of few bits": Case(Kind("Granite", {**_GRANITE, **_WIDE}), _llama_3, Content(_mixed)),
    "smollm 3": Case(
        Kind("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True, "pad_token_id": None}), _llama_3
    ),
    "gemma 3": Case(
        Kind("Gemma3", {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 13, "query_pre_attn_scalar": 16}),
        _gemma,
    ),
    "gemma 3 of few bits": Case(
        Kind("Gemma3", {"head_dim": 32, "sliding_window": 9, "query_pre_attn_scalar": 32, **_WIDE}),
        _gemma,
        Content(_mixed, keys={"gemma3.rope.freq_base_swa": 10_000.0}),
    ),
    "olmo 2": Case(Kind("Olmo2", {"num_key_value_heads": 8}), _llama_3),
    "qwen 2": Case(Kind("Qwen2", {"num_key_value_heads": 2, "rope_theta": 1_000_000.0}), _qwen),
    "qwen 3 of few bits": Case(
        Kind("Qwen3", {"head_dim": 32, "tie_word_embeddings": True, **_WIDE}), _qwen, Content(_mixed)
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def theirs(model: Any, ids: list[int], columns: int) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, :, :columns]
    return logits


def test_logits_and_greedy_tokens_are_transformers_with_the_same_numbers(case: Case, tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "model.gguf", case.kind, case.tokens(), case.content)
    ours = load(written.path, threads=1)
    ids = [index * 7 % ours.config.vocab_size for index in range(CONTEXT)]

    expected = theirs(written.model, ids, ours.config.vocab_size)
    assert expected.std() > 0.1
    assert (ours(torch.tensor([ids]))[0][0] - expected).abs().max() < 1e-4
    assert (read_model(written.path)(torch.tensor([ids]))[0][0] - expected).abs().max() < 1e-4

    answer = [step.token_id for step in generate(ours, ids[:9], 32)]
    for length, token in enumerate(answer, 9):
        assert token == theirs(written.model, (ids[:9] + answer)[:length], ours.config.vocab_size)[-1].argmax()


def test_ids_without_a_text_are_never_chosen(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "model.gguf", Kind("Qwen2"), _qwen())

    assert load(written.path, threads=1).config.vocab_size == 331  # of 352 rows
    assert checkpoint_of(written.path).tokenizer().vocab_size == 331


def test_a_head_of_its_own_makes_the_embedding_untied(tmp_path: Path) -> None:
    kind = Kind("Llama")
    own = write_gguf(tmp_path / "own.gguf", kind, _llama_3()).path
    tied = write_gguf(tmp_path / "tied.gguf", kind, _llama_3(), Content(tensors={"output.weight": None})).path

    assert not load(own, threads=1).config.tied_embeddings
    assert load(tied, threads=1).config.tied_embeddings


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_worker_may_hold_the_weights_in_less(tmp_path: Path, dtype: Any) -> None:
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama", _WIDE), _llama_3(), Content(_mixed))

    served = load_served_model(written.path, "small", 2, 1, dtype=dtype)

    assert served.card.fingerprint != fingerprint(written.path, "float32")
    assert served.model.weight_bytes < load(written.path, threads=1).weight_bytes


def test_a_worker_announces_what_the_file_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"tokenizer.chat_template": "{{ bos_token }}x", "tokenizer.chat_template.tool_use": "y"}
    tokens = {**_llama_3(), "eom_token_id": 5}
    written = write_gguf(tmp_path / "Tiny-Llama.Q4_0.gguf", Kind("Llama"), tokens, Content(keys=keys))

    with caplog.at_level(logging.INFO):
        card = load_served_model(written.path, default_name(written.path), 2, 1).card

    assert (card.name, card.context_length, card.vocab_size) == ("Tiny-Llama.Q4_0", CONTEXT, 330)
    assert card.stop_ids == (1, 5)
    assert card.chat is not None
    assert card.chat.template == "{{ bos_token }}x"
    assert card.chat.tokens == {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    assert "chat templates that are not used: tokenizer.chat_template.tool_use" in caplog.text
    assert "chats are written by its own tokenizer.chat_template of 16 characters" in caplog.text


def test_a_file_without_a_template_answers_no_chats_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3())

    with caplog.at_level(logging.INFO):
        assert checkpoint_of(written.path).chat_format() is None
    assert "has no tokenizer.chat_template: it answers texts, and no chats" in caplog.text


def test_a_link_in_the_cache_of_the_hub_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").write_bytes(b"GGUF")
    link = tmp_path / "Qwen3-0.6B-Q8_0.gguf"
    link.symlink_to(tmp_path / "blobs" / "0a1b")

    assert default_name(link) == "Qwen3-0.6B-Q8_0"


def test_another_file_has_another_fingerprint_and_other_stamps(tmp_path: Path) -> None:
    one = write_gguf(tmp_path / "one.gguf", Kind("Llama"), _llama_3()).path
    two = write_gguf(tmp_path / "two.gguf", Kind("Llama"), _llama_3(), Content(keys={"general.name": "two"})).path

    assert fingerprint(one, "float32") != fingerprint(two, "float32")
    assert fingerprint(one, "float32") == fingerprint(one, "float32")
    before = stamps(one)
    two.replace(one)
    assert stamps(one) != before


def test_stop_ids_are_those_of_texts_turns_and_messages(tmp_path: Path) -> None:
    tokens = {**_qwen(), "eos_token_id": 2, "eot_token_id": 2, "eom_token_id": 1}
    written = write_gguf(tmp_path / "model.gguf", Kind("Qwen2"), tokens)

    assert read_stop_ids(written.path) == (2, 1)


def llama3_divisors(factor: float, trained: int, head_dim: int) -> torch.Tensor:
    """As ``generate_extra_tensors`` of llama.cpp's converter."""
    frequencies = 1.0 / (500_000.0 ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    lengths = 2 * torch.pi / frequencies
    share = (trained / lengths - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - share) / factor + share)
    return torch.where(lengths < trained / 4, 1.0, torch.where(lengths > trained, factor, between))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 500_000.0,
}


@pytest.mark.parametrize(("trained", "known"), [(32, RopeScaling), (8192, RopeScaling), (40, LongScaling)])
def test_divisors_of_llama_3_turn_positions_as_its_config_does(tmp_path: Path, trained: int, known: type) -> None:
    rope = {**LLAMA3, "original_max_position_embeddings": trained}
    extra = {"rope_freqs.weight": llama3_divisors(8.0, trained, 16).numpy()}
    shape = {"rope_parameters": rope, "hidden_size": 64, "num_attention_heads": 4}
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama", shape), _llama_3(), Content(tensors=extra))
    ours = load(written.path, threads=1)
    ids = [index * 7 % 330 for index in range(CONTEXT)]

    assert type(ours.config.rope.scaling) is known
    assert (ours(torch.tensor([ids]))[0][0] - theirs(written.model, ids, 330)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"type": "none", "factor": 4.0}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        ({"type": "linear", "factor": 1.0}, None),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0},
            YarnScaling(4.0, 32, beta_fast=16.0),
        ),
    ],
)
def test_scaled_positions_are_those_of_a_config(tmp_path: Path, keys: dict[str, Any], scaling: Any) -> None:
    given = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3(), Content(keys=given))

    assert load(written.path, threads=1).config.rope.scaling == scaling


def test_numbers_are_the_decimal_ones_of_the_folder(tmp_path: Path) -> None:
    kind = Kind("Llama", {"rms_norm_eps": 1e-5})
    config = load(write_gguf(tmp_path / "model.gguf", kind, _llama_3()).path, threads=1).config

    assert config.norm_eps == 1e-5
    assert config == ModelConfig(330, CONTEXT, 2, 8, 4, 64, 80, norm_eps=1e-5, tied_embeddings=False)


def test_a_window_makes_a_llama_a_mistral(tmp_path: Path) -> None:
    content = Content(keys={"llama.attention.sliding_window": 40})
    written = write_gguf(tmp_path / "model.gguf", Kind("Llama"), _llama_3(), content)

    assert load(written.path, threads=1).config.windows == (40, 40)
