"""GGUF files that leave open what their tokenizer is: refused by the key, and never guessed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.family_checkpoints import Kind
from support.gguf_files import UNUSED, Content, byte_level_tokens, pieces_tokens, scores_of, write_gguf
from support.tokenizer_kinds import llama_2, qwen

from minilab_gen.errors import CheckpointError
from minilab_gen.models.source import checkpoint_of
from minilab_gen.text.tokenizer import Tokenizer


def read(path: Path, tokens: dict[str, Any], **keys: Any) -> Tokenizer:
    """The tokenizer of a file with these keys."""
    more = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return checkpoint_of(write_gguf(path, Kind("Llama"), tokens, Content(keys=more)).path).check()


def refused(path: Path, tokens: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(path, tokens, **keys)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}")
    return message.replace(str(path), "FILE")


def byte_level(**more: Any) -> dict[str, Any]:
    return {**byte_level_tokens(qwen(), "qwen2"), **more}


def pieces(**more: Any) -> dict[str, Any]:
    return {**pieces_tokens(llama_2(), scores_of(llama_2())), **more}


def test_a_splitter_that_is_not_known_for_certain_is_refused(tmp_path: Path) -> None:
    remedy = "if you know which it is: gguf-new-metadata --pre-tokenizer NAME FILE NEW.gguf"
    for pre, got in ((None, "no such key"), ("default", "'default'"), ("falcon", "'falcon'")):
        message = refused(tmp_path / "x.gguf", byte_level(pre=pre))
        assert "FILE: tokenizer.ggml.pre must be one of llama-bpe, llama3, " in message
        assert message.endswith(f"got {got}; {remedy}")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (lambda: byte_level(model=None), "FILE lacks the key tokenizer.ggml.model"),
        (lambda: byte_level(model="bert"), "FILE: tokenizer.ggml.model must be gpt2 or llama, got 'bert'"),
        (lambda: byte_level(merges=None), "FILE lacks tokenizer.ggml.merges, without which"),
        (lambda: byte_level(token_type=None), "FILE lacks tokenizer.ggml.token_type, without which"),
        (lambda: pieces(scores=None), "FILE lacks tokenizer.ggml.scores, without which"),
        (lambda: pieces(scores=[1.0, 2.0]), "tokenizer.ggml.scores must have a number for each of "),
        (lambda: byte_level(token_type=[1, 1, 1]), "tokenizer.ggml.token_type must have a number for each of 331"),
        (lambda: byte_level(token_type="1"), "tokenizer.ggml.token_type must be an array of numbers, got '1'"),
        (lambda: byte_level(merges=[1, 2]), "tokenizer.ggml.merges must be an array of strings, got array"),
        (lambda: byte_level(merges=["ab"]), "tokenizer.ggml.merges must be pairs with a space between, got 'ab' at 0"),
        (lambda: byte_level(merges=["a b", "a b c"]), "must be pairs with a space between, got 'a b c' at 1"),
        (lambda: byte_level(merges=["a \u00a7\u00a7"]), "FILE: tokenizer.ggml.tokens and merges do not fit: "),
        (lambda: byte_level(eos_token_id=331), "eos_token_id must be below 331, the number of tokens, got 331"),
        (lambda: byte_level(eom_token_id=400), "eom_token_id must be below 331, the number of tokens, got 400"),
        (lambda: byte_level(eos_token_id="2"), "tokenizer.ggml.eos_token_id must be of the type int, got '2'"),
        (lambda: byte_level(add_bos_token=1), "tokenizer.ggml.add_bos_token must be of the type bool, got 1"),
        (lambda: byte_level(add_bos_token=True), "bos_token_id must name the token that stands around texts, got no"),
    ],
    ids=[
        *("no model", "other model", "no merges", "no types", "no scores", "few scores", "few types", "types"),
        *(
            "type of merges",
            "no pair",
            "three",
            "unknown",
            "beyond",
            "eom beyond",
            "type of id",
            "type of flag",
            "no bos",
        ),
    ],
)
def test_what_leaves_the_tokenizer_open_is_refused_by_its_key(
    tmp_path: Path, tokens: Callable[[], dict[str, Any]], message: str
) -> None:
    assert message in refused(tmp_path / "x.gguf", tokens())


def test_a_token_that_stands_there_twice_is_named(tmp_path: Path) -> None:
    tokens = byte_level()
    tokens["tokens"] = [*tokens["tokens"][:-1], tokens["tokens"][7]]

    assert "tokenizer.ggml.tokens must have each token once, got " in refused(tmp_path / "x.gguf", tokens)
    tokens["token_type"] = [*tokens["token_type"][:-1], UNUSED]
    assert read(tmp_path / "y.gguf", tokens).vocab_size == 330
