"""Checkpoint folders for the decoder in plain PyTorch: read and written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from minilab_gen.models.checkpoint import open_checkpoint, read_tensor
from minilab_gen.models.config_json import described
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.tensors import stored_tensors
from minilab_gen.models.weights import SINGLE_FILE, RawTensor
from minilab_gen.text.tokenizer import END_OF_TEXT, Tokenizer
from minilab_gen.text.tokenizer_config import TOKENIZER_CONFIG


def read_model(folder: str | Path) -> MiniLabModel:
    """The model of a checkpoint, a folder or a GGUF file, as a torch decoder in float32.

    It is there to be trained on, for other devices, and to compare the kernels with. Raises CheckpointError.
    """
    files, config = open_checkpoint(Path(folder))
    model = MiniLabModel(config)
    with torch.no_grad():
        for each in stored_tensors(config):
            rows = slice(each.first, each.first + each.shape[0])
            model.get_parameter(each.parameter)[rows] = _tensor(read_tensor(files, each))
    return model.eval()


def write_checkpoint(folder: Path, model: MiniLabModel, tokenizer: Tokenizer) -> None:
    """Write a folder that :func:`load` and the transformers library open alike.

    A user that may read its config may read its weights, a worker under a user of its own for instance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end_of_text = tokenizer.token_id(END_OF_TEXT)
    content = {
        **described(model.config),
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    settings = json.dumps(_tokenizer_settings(model.config.context_length, end_of_text is not None), indent=2)
    (folder / TOKENIZER_CONFIG).write_text(settings + "\n", encoding="utf-8")
    save_file(_tensors_to_store(model), folder / SINGLE_FILE, metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", folder / SINGLE_FILE)  # safetensors lets only the owner read


def _tokenizer_settings(context_length: int, has_end: bool) -> dict[str, Any]:
    """What transformers' tokenizer is told: programs that score whole texts put the token before that begins one."""
    roles = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT} if has_end else {}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **roles, "model_max_length": context_length}


def _tensor(raw: RawTensor) -> Tensor:
    """Stored numbers for torch, which shares their memory."""
    return torch.frombuffer(raw.numbers, dtype=getattr(torch, raw.dtype)).view(raw.shape)


def _tensors_to_store(model: MiniLabModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for each in stored_tensors(model.config):
        rows = slice(each.first, each.first + each.shape[0])
        tensors[each.stored] = model.get_parameter(each.parameter).detach()[rows].contiguous()
    return tensors
