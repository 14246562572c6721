"""What llama.cpp makes of a GGUF file: ids of texts, and logits behind given ids. It runs in llama.cpp's environment.

On its standard input comes one JSON object: ``file``, ``unpacked`` (whether to compute with the file's weights in
float32), ``texts``, ``sequences`` of ids, and ``logits``, the file to write. It prints the ids of each text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import llama_cpp  # type: ignore[import-not-found]
import numpy as np


def unpack(file: Path, into: Path) -> Path:
    """Write the same model with all its weights in float32."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(into, reader.fields["general.architecture"].contents())
    for key, found in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = found.types[0]
        writer.add_key_value(key, found.contents(), kind, found.types[-1] if len(found.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def logits(file: Path, sequences: list[list[int]]) -> list[Any]:
    """The logits behind each id, (ids, vocab), with keys and values in float32."""
    longest = max(map(len, sequences))
    float32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(file), n_ctx=longest, n_batch=longest, logits_all=True, type_k=float32, type_v=float32, verbose=False
    )
    found = []
    for ids in sequences:
        model.reset()
        model.eval(ids)
        found.append(model.scores[: len(ids)].copy())
    return found


def main() -> None:
    """Answer one question."""
    asked = json.loads(sys.stdin.read())
    file = Path(asked["file"])
    tokenizer = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    print(json.dumps([tokenizer.tokenize(text.encode(), add_bos=True, special=True) for text in asked["texts"]]))
    with TemporaryDirectory(prefix="unpacked-") as name:
        computed = unpack(file, Path(name) / "model.gguf") if asked["unpacked"] else file
        np.savez(asked["logits"], *logits(computed, asked["sequences"]))


if __name__ == "__main__":
    main()
