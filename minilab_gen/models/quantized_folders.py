"""Checkpoint folders whose weights are in few bits: refused by name, with the way to a model that is served.

Each method packs weights in its own way. What transformers unpacks on any processor gets the command for that.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from minilab_gen.errors import CheckpointError

_KEYS: Final = ("quantization_config", "compression_config", "quantization")
"""Of ``config.json``; the second is of older releases of compressed-tensors, the third of MLX."""

_UNPACKED: Final = {
    "bitsandbytes": ("accelerate bitsandbytes", "", "K.from_pretrained(f).dequantize()"),
    "fp8": (
        "accelerate",
        ", FineGrainedFP8Config as C",
        "K.from_pretrained(f, quantization_config=C(dequantize=True))",
    ),
}
"""Methods that transformers unpacks without a graphics card: packages besides it, what is imported, and how."""

_LONGEST_METHOD: Final = 40
"""Characters of a method's name that are shown."""


def check_not_quantized(folder: Path, stored: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a folder of packed weights, by the content of its ``config.json``."""
    key = next((key for key in _KEYS if stored.get(key) is not None), None)
    if key is None:
        return
    config = stored[key]
    method = "MLX" if "quantization" in stored else _method(config if isinstance(config, Mapping) else {})
    rule = f"{key} says that weights are packed by {method[:_LONGEST_METHOD]}, which is not read"
    raise CheckpointError(f"{folder / 'config.json'}: {rule}; {_way_out(folder, method)}")


def _method(config: Mapping[str, Any]) -> str:
    method = config.get("quant_method")
    if method is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        return "bitsandbytes"  # whose older releases do not say so
    return "a method without a name" if method is None else str(method)


def _way_out(folder: Path, method: str) -> str:
    serve = "serve the folder of the model that it was made from with --dtype int8, or a GGUF file of it"
    if method not in _UNPACKED:
        return serve
    packages, more, read = _UNPACKED[method]
    unpacked = folder.parent / f"{folder.resolve().name}-unpacked"
    code = (
        f"from transformers import AutoModelForCausalLM as K, AutoTokenizer as T{more}; "
        f"f, to = {json.dumps(str(folder))}, {json.dumps(str(unpacked))}; "
        f"{read}.save_pretrained(to); T.from_pretrained(f).save_pretrained(to)"
    )
    command = f"pip install transformers {packages} && python -c {shlex.quote(code)}"
    return f"{serve}, or unpack it: {command}"
