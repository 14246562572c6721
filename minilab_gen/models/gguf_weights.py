"""The weights of a GGUF file, by the names that folders give them: one tensor at a time is read and unpacked.

Sources: the names are those of the package ``gguf``; the order of rotary pairs in a Llama is that of llama.cpp's
``convert_hf_to_gguf.py``, whose ``permute`` is undone here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from minilab_gen.errors import CheckpointError
from minilab_gen.models.gguf_header import GgufHeader, GgufTensor
from minilab_gen.models.gguf_rope import ROPE_TENSORS
from minilab_gen.models.gguf_types import held_as, unpacked
from minilab_gen.models.weights import RawTensor

_MODULES: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Our names of modules, which are Hugging Face's, by GGUF's."""

_PIECE: Final = 1 << 22
"""Bytes, packed, that are unpacked at a time."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the tensors of an architecture have of their own."""

    paired_heads: Mapping[str, int] = field(default_factory=dict)
    """Heads of ``attn_q`` and ``attn_k``, if rows that turn together stand side by side."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our names of modules of a layer that have others than usual."""
    gains_from_one: bool = False
    """Whether gains of norms, which folders count from 1, are whole."""


class GgufWeights:
    """The tensors of a file; those of :class:`~minilab_gen.models.weights.StoredWeights`, from elsewhere."""

    def __init__(self, header: GgufHeader, layout: Layout | None = None) -> None:
        self._path, self._layout = header.path, layout or Layout()
        names = _OF_LAYER | dict(self._layout.names)
        self._theirs = {ours: theirs for theirs, ours in (_MODULES | names).items()}
        self._tensors = {_our_name(name, names): tensor for name, tensor in header.tensors.items()}

    def check(self, expected: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Raise CheckpointError unless these tensors are there, in these shapes, and no others."""
        known = set()
        for name, shape in expected:
            known.add(name)
            tensor = self._tensors.get(name)
            if tensor is None:
                raise CheckpointError(f"{self._path} lacks the tensor {self._their_name(name)}, which must be {shape}")
            if tensor.shape != shape:
                raise CheckpointError(f"{self._path}: the tensor {tensor.name} must be {shape}, got {tensor.shape}")
        extra = [tensor.name for name, tensor in self._tensors.items() if name not in known]
        extra = [name for name in extra if name not in ROPE_TENSORS]
        if extra:
            others = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            raise CheckpointError(f"{self._path}: no part of this model takes {extra[0]}{others}")

    def read(self, name: str, rows: int | None = None) -> RawTensor:
        """The first rows of a tensor, or all: as they are stored, or in float32 where that is no number's own type.

        They are read and not mapped: a file that is cut short meanwhile is then an error, not the end of the process.
        """
        tensor = self._tensors[name]
        count = tensor.shape[0] if rows is None else rows
        shape = (count, *tensor.shape[1:])
        dtype = held_as(tensor.type)
        numbers = bytearray(int(np.prod(shape)) * (4 if dtype == "float32" else 2))
        flat: Any = np.frombuffer(numbers, np.float32 if dtype == "float32" else np.uint16)
        lines = 1 if len(shape) == 1 else count
        self._fill(flat.reshape(lines, -1), tensor)
        module = tensor.name.rpartition(".")[0].rpartition(".")[2]
        if heads := self._layout.paired_heads.get(module):
            flat[:] = _halves_apart(flat.reshape(count, -1), heads).reshape(-1)
        if self._layout.gains_from_one and module.endswith("norm"):
            if dtype != "float32":
                raise CheckpointError(f"{self._path}: {tensor.name} must be of the type F32, got {dtype}")
            flat -= 1  # exact for gains from 1/2 on
        return RawTensor(numbers, dtype, shape)

    def _their_name(self, name: str) -> str:
        """The other way."""
        module, _, kind = name.rpartition(".")
        if module in self._theirs:
            return f"{self._theirs[module]}.{kind}"
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{self._theirs.get(part, part)}.{kind}"

    def _fill(self, out: Any, tensor: GgufTensor) -> None:
        """Unpack the first rows of a tensor, (rows, columns), a piece at a time."""
        step = max(1, _PIECE // tensor.row_bytes)
        try:
            with self._path.open("rb") as file:
                file.seek(tensor.start)
                for first in range(0, len(out), step):
                    part = out[first : first + step]
                    packed = file.read(len(part) * tensor.row_bytes)
                    if lacking := len(part) * tensor.row_bytes - len(packed):
                        raise CheckpointError(
                            f"{self._path} was cut short while it was read: {tensor.name} lacks {lacking} bytes"
                        )
                    part[:] = unpacked(np.frombuffer(packed, np.uint8).reshape(len(part), -1), tensor.type)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be read: {error.strerror}") from error


def _halves_apart(rows: Any, heads: int) -> Any:
    """Rows (heads * head_dim, columns) with those that turn together half a head apart, as everywhere but in GGUF."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _our_name(name: str, names: Mapping[str, str]) -> str:
    """A tensor's name in folders; what has none there keeps its own."""
    module, _, kind = name.rpartition(".")
    if module in _MODULES:
        return f"{_MODULES[module]}.{kind}"
    first, _, rest = module.partition(".")
    layer, _, part = rest.partition(".")
    if first == "blk" and layer.isdecimal() and part in names:
        return f"model.layers.{layer}.{names[part]}.{kind}"
    return name
