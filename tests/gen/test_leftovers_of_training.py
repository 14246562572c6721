"""What trainers leave in a folder and changes nothing is let through, and said once; what changes numbers is not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from minilab_worker.serving import load_served_model
from support.checkpoint_folders import change_json, write_random
from support.family_checkpoints import Kind, largest_gap, reload, write
from support.small_models import tokenizer_of
from support.tokenizer_kinds import KINDS, TEXT

from minilab_gen.api import chat_prompt
from minilab_gen.errors import CheckpointError
from minilab_gen.models.checkpoint import load, read_stop_ids
from minilab_gen.models.checkpoint_folder import check_folder, read_config
from minilab_gen.text.chat import Conversation
from minilab_gen.text.tokenizer import get_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

CLOSE = 1e-4
LEFT: dict[str, dict[str, Any]] = {
    "Llama": {
        "gradient_checkpointing": True,
        "model_max_length": 64,
        "_flash_attn_2_enabled": True,
        "neftune_noise_alpha": 5,
        "resid_pdrop": 0.1,
    },
    "Mistral": {"attn_implementation": "sdpa", "cache_implementation": "static"},
    "Qwen2": {"loss_type": "ForCausalLMLoss", "_attn_implementation": "sdpa", "hidden_dropout": 0.5},
    "Qwen3": {"auto_map": {"AutoModelForCausalLM": "modeling_x.Y"}, "tokenizer_padding_side": "left"},
}


@pytest.mark.parametrize("family", LEFT)
def test_logits_are_those_of_transformers_whatever_a_trainer_left(tmp_path: Path, family: str) -> None:
    write(tmp_path, Kind(family))
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | LEFT[family]))

    assert largest_gap(tmp_path) < CLOSE
    assert read_stop_ids(tmp_path) == (reload(tmp_path).generation_config.eos_token_id,)


def test_ignored_keys_are_logged_once_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_random(tmp_path)
    with caplog.at_level(logging.INFO, "minilab_gen"):
        load(tmp_path)
        assert caplog.messages == []
        change_json(tmp_path / "config.json", use_return_dict=True, gradient_checkpointing=True, auto_map={"A": "x.Y"})
        load(tmp_path)

    names = "auto_map, gradient_checkpointing, use_return_dict"
    assert caplog.messages == [
        f"{tmp_path / 'config.json'}: keys that change nothing are ignored: {names}",
        f"{tmp_path}: code of the folder (auto_map) is not run; the architecture says what is computed",
    ]


@pytest.mark.parametrize("key", ["logit_scale", "attn_logit_softcapping", "num_experts", "attention_multiplier"])
def test_a_key_that_may_change_numbers_is_refused_by_name(tmp_path: Path, key: str) -> None:
    write_random(tmp_path)
    change_json(tmp_path / "config.json", **{key: 2, "gradient_checkpointing": True})

    with pytest.raises(CheckpointError, match=f"the key {key} is not understood"):
        read_config(tmp_path)


# One token more than rows


@pytest.mark.parametrize(
    ("kind", "pad", "declared"),
    [
        ("llama-2", "[PAD]", {}),
        ("llama-3", "<|finetune_right|>", {"pad_token": "<|finetune_right|>"}),
        ("qwen", "<|filler|>", {"pad_token": {"__type": "AddedToken", "content": "<|filler|>"}}),
    ],
)
def test_a_token_for_padding_that_has_no_row_is_never_chosen(
    tmp_path: Path, kind: str, pad: str, declared: dict[str, Any]
) -> None:
    library = KINDS[kind]()
    rows = library.get_vocab_size()
    if not declared:
        library.add_special_tokens([pad])
    write(tmp_path, Kind("Llama", {"vocab_size": rows}))
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))

    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert check_folder(tmp_path).vocab_size == len(theirs) == rows + 1
    assert get_tokenizer(tmp_path).encode(TEXT + pad) == theirs(TEXT + pad).input_ids
    assert load(tmp_path).config.vocab_size == rows
    assert largest_gap(tmp_path) < CLOSE


def test_more_ids_than_rows_are_refused_but_for_padding(tmp_path: Path) -> None:
    write_random(tmp_path)
    rule = r"tokenizer\.json must know at most the 64 ids of the model, got"
    for count, pad in [(65, {}), (66, {"pad_token": "<pad>"}), (65, {"pad_token": "<pad>", "eos_token": "<end>"})]:
        (tmp_path / "tokenizer.json").write_text(tokenizer_of(count).to_json())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(pad))

        for reader in (check_folder, load):
            with pytest.raises(CheckpointError, match=rule):
                reader(tmp_path)


def test_tokens_that_have_a_role_and_no_id_need_no_row(tmp_path: Path) -> None:
    """They are in transformers' tokenizer as well, behind all rows; a chat cannot end with one of them."""
    import transformers

    write_random(tmp_path)
    roles = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<end>", "chat_template": "{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    card = load_served_model(tmp_path, "base", 4, 1).card
    tokenizer = check_folder(tmp_path)

    assert tokenizer.vocab_size == len(transformers.AutoTokenizer.from_pretrained(tmp_path)) == 67
    assert (card.vocab_size, tokenizer.token_id("<end>")) == (64, 64)
    assert 64 not in chat_prompt(Conversation.of("a"), card, tokenizer)[1]
