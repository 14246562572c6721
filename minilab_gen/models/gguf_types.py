"""The types of GGUF's tensors that are read, and their numbers: those that the package ``gguf`` unpacks.

Its types of whole numbers hold no weights, and NVFP4 needs scales that stand in other tensors.
"""

from __future__ import annotations

from typing import Any, Final

import gguf
import numpy as np

_NAMES: Final = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
    "MXFP4",
)

TYPES: Final = {int(kind): kind for kind in map(gguf.GGMLQuantizationType.__getitem__, _NAMES)}
"""By the numbers that stand in files."""

SIZES: Final = {number: gguf.GGML_QUANT_SIZES[kind] for number, kind in TYPES.items()}
"""Numbers of a block, and bytes that it takes."""

_AS_STORED: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types that the kernels take as they are."""


def type_name(number: int) -> str:
    """A type's name, its number where it has none."""
    try:
        return str(gguf.GGMLQuantizationType(number).name)
    except ValueError:
        return str(number)


def held_as(number: int) -> str:
    """How numbers of a type are handed on, in everyone else's words."""
    return _AS_STORED.get(TYPES[number].name, "float32")


def unpacked(packed: Any, number: int) -> Any:
    """Rows of numbers from rows of bytes: two bytes each as they are, all else in float32."""
    if held_as(number) != "float32":
        return packed.view(np.uint16)
    with np.errstate(all="ignore"):  # damaged scales give what is not finite, which ends a job with its own message
        return gguf.dequantize(packed, TYPES[number])
