"""A head that is stored under a configuration that ties it: what transformers makes of it is what we make."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.family_checkpoints import Kind, largest_gap, reload, write
from torch import Tensor

from minilab_gen.models.checkpoint import load
from minilab_gen.models.torch_checkpoint import read_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about Python

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
CLOSE = 1e-4
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NOTE = (
    "tie_word_embeddings is true, but lm_head.weight is stored and differs from model.embed_tokens.weight: it is used"
)
Tensors = dict[str, Tensor]


def tied(folder: Path, family: str, change: Callable[[Tensors], Tensors]) -> None:
    write(folder, Kind(family, {"tie_word_embeddings": True, "head_dim": 8}))
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def another(tensors: Tensors) -> Tensors:
    """A head of its own, which differs in the last number alone."""
    head = tensors[EMBEDDING].clone()
    head[-1, -1] += 3
    return tensors | {HEAD: head}


def same(tensors: Tensors) -> Tensors:
    return tensors | {HEAD: tensors[EMBEDDING].clone()}


def only_the_head(tensors: Tensors) -> Tensors:
    return {HEAD if name == EMBEDDING else name: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", [another, same, only_the_head])
def test_logits_of_a_stored_head_are_those_of_transformers(
    tmp_path: Path, family: str, change: Callable[[Tensors], Tensors]
) -> None:
    tied(tmp_path, family, change)

    assert largest_gap(tmp_path) < CLOSE
    theirs, ours = reload(tmp_path), read_model(tmp_path)
    assert (ours.head.weight is ours.embedding.weight) == (theirs.lm_head.weight is theirs.model.embed_tokens.weight)
    assert ours.config.tied_embeddings == (change is not another)


def test_a_head_that_is_used_against_the_configuration_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, change in [("same", same), ("another", another)]:
        tied(tmp_path / folder, "Llama", change)
        with caplog.at_level(logging.WARNING, "minilab_gen"):
            load(tmp_path / folder, threads=1)

    assert caplog.messages == [NOTE]


def test_a_head_in_another_type_is_one_of_its_own(tmp_path: Path) -> None:
    tied(tmp_path, "Llama", lambda tensors: tensors | {HEAD: tensors[EMBEDDING].to(torch.bfloat16)})

    assert not load(tmp_path, threads=1).config.tied_embeddings
    assert largest_gap(tmp_path) < CLOSE
