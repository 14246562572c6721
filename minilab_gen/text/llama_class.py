"""Folders whose tokenizer is of the class ``LlamaTokenizer``: transformers 5 takes its words from ``tokenizer.json``.

How a text is cut into them it decides by itself: a ``▁`` stands before the first word of a text and, but for folders
that say ``legacy``, not before what follows a special token. Chat prompts, which are full of these, differ by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minilab_gen.json_file import read_json

_CLASSES: Final = ("LlamaTokenizer", "LlamaTokenizerFast")

_OTHERWISE: Final = ("mistral", "qwen2")
"""Types of models for which transformers takes another class, whatever a folder says."""


def cut_by_class(library: Tokenizer, folder: Path, settings: Mapping[str, Any], text: str) -> None:
    """Cut texts as transformers does where a folder's tokenizer is of this class; ``text`` is ``tokenizer.json``."""
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    is_byte_level = '"ByteLevel"' in text  # as transformers looks for it
    if named not in _CLASSES or config.get("model_type") in _OTHERWISE or is_byte_level:
        return
    if not isinstance(library.model, models.BPE):
        return
    given = settings.get("add_prefix_space")
    prefix = given is None or bool(given)
    scheme = "never" if not prefix else "always" if settings.get("legacy") else "first"
    library.model.byte_fallback, library.model.fuse_unk = True, True
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
