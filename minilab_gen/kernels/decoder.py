"""A decoder whose weights and caches the kernels hold, and the samplers of its sequences.

It must not know jobs or queues, nor choose who runs: ids, slots and positions go in, logits or tokens come out.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from minilab_gen.kernels.library import KernelError, Rope, Shape, Step, check, library
from minilab_gen.kernels.logprobs import LogprobRoom
from minilab_gen.kernels.sampler import TokenSampler

if TYPE_CHECKING:
    from minilab_gen.models.config import ModelConfig
    from minilab_gen.models.rope_config import RopeConfig

WeightType = Literal["float32", "bfloat16", "int8"]
WEIGHT_TYPES: Final[tuple[WeightType, ...]] = ("float32", "bfloat16", "int8")

LANES: Final = 16
"""Numbers of a vector, as ``rules.h`` has it: what rows are padded to."""

_TYPES: Mapping[str, int] = MappingProxyType({"float32": 0, "bfloat16": 1, "int8": 2, "float16": 3})

TENSORS: Final = (
    *("embedding", "positions", "norm", "norm_bias", "head"),
    *("attention_norm", "attention_norm_bias", "query", "key", "value", "query_bias", "key_bias", "value_bias"),
    *("query_norm", "key_norm", "output", "output_bias", "attention_post_norm"),
    *("feed_forward_norm", "feed_forward_norm_bias", "gate", "gate_bias", "up", "up_bias", "down", "down_bias"),
    "feed_forward_post_norm",
)
"""Of which a model is made, in the order of ``mlk_tensor``; the first five are not of a layer."""

ACTIVATIONS: Final = ("silu", "gelu_tanh", "gelu")
"""In the order of ``mlk_activation``."""

_ROPES: Final = ("linear", "llama3", "yarn", "longrope")
"""Ways to scale rotary positions, in the order of ``mlk_rope_kind``, whose first is none."""


class Source(Protocol):
    """A contiguous tensor on the CPU, as torch has them."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    def data_ptr(self) -> int: ...
    def is_contiguous(self) -> bool: ...


def shape_of(config: ModelConfig) -> Shape:
    """A model's shape as the kernels take it."""
    return Shape(
        vocab=config.vocab_size,
        context=config.context_length,
        layers=config.n_layer,
        heads=config.n_head,
        kv_heads=config.n_kv_head,
        head_dim=config.head_dim,
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        rope_dim=config.turned_dim,
        tied=config.tied_embeddings,
        learned_positions=config.learned_positions,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        feed_forward_bias=config.feed_forward_bias,
        layer_norm=config.layer_norm,
        pre_norm=config.pre_norm,
        post_norm=config.post_norm,
        head_norm=config.head_norm,
        row_norm=config.row_norm,
        parallel=config.parallel,
        gated=config.gated,
        activation=ACTIVATIONS.index(config.activation),
        norm_eps=config.norm_eps,
        gain_offset=float(config.gain_from_one),
        embedding_scale=config.embedding_scale,
        attention_scale=config.attention_scale or 0.0,
        residual_scale=config.residual_scale,
        logit_divisor=config.logit_divisor,
    )


def rope_of(rope: RopeConfig) -> Rope:
    """Rotary positions as the kernels take them."""
    made, scaling = Rope(theta=rope.theta), rope.scaling
    if scaling is None:
        return made
    made.kind, made.factor = 1 + _ROPES.index(scaling.kind), scaling.factor
    if scaling.kind == "llama3":
        made.low, made.high = scaling.low_freq_factor, scaling.high_freq_factor
    elif scaling.kind == "yarn":
        made.low, made.high, made.truncate = scaling.beta_slow, scaling.beta_fast, scaling.truncate
    elif scaling.kind == "longrope":
        made.divisors = (ctypes.c_float * len(scaling.divisors))(*scaling.divisors)
    if scaling.kind != "linear":
        made.original = scaling.original_max_position_embeddings
    if scaling.kind in ("yarn", "longrope"):
        made.attention = scaling.attention(_logarithm)
    return made


def _logarithm(number: float) -> float:
    """The kernels' own, which is the same on every machine."""
    given, found = ctypes.c_double(number), ctypes.c_double()
    library().mlk_logarithms(ctypes.byref(given), ctypes.byref(found), 1)
    return found.value


class Decoder:
    """One model with ``slots`` caches of a whole context each, computed by up to ``threads`` threads.

    A cache costs memory as it is written. One thread uses a decoder at a time; it lets others run meanwhile.
    """

    def __init__(
        self, config: ModelConfig, weights: WeightType, *, slots: int, threads: int, over: Decoder | None = None
    ) -> None:
        """A decoder without weights, or one that shares those of another. Raises KernelError for what cannot be."""
        self.config, self.weights, self.slots = config, weights, slots
        self._library = library()
        if over is not None:
            self._model: int | None = self._library.mlk_beside(over._model, slots, threads)  # noqa: SLF001 - its own class
        else:
            self._model = self._library.mlk_create(ctypes.byref(shape_of(config)), _TYPES[weights], slots, threads)
        if not self._model:
            raise KernelError(self._library.mlk_error().decode())
        if over is None:
            self._describe_layers(config)

    def _describe_layers(self, config: ModelConfig) -> None:
        for index, rope in enumerate(config.ropes):
            check(self._library.mlk_set_rope(self._model, index, ctypes.byref(rope_of(rope))), self._library)
        for layer in range(config.n_layer):
            rope_index, window = config.rope_of_layer(layer), config.window_of_layer(layer)
            status = self._library.mlk_set_layer(
                self._model, layer, window or 0, -1 if rope_index is None else rope_index
            )
            check(status, self._library)

    def beside(self, slots: int, threads: int) -> Decoder:
        """Another decoder over the same weights, with caches and threads of its own, for any thread to use.

        Raises KernelError where there is no memory for it. No tensor may be set once it is there.
        """
        return Decoder(self.config, self.weights, slots=slots, threads=threads, over=self)

    def set(self, name: str, tensor: Source, layer: int = 0) -> None:
        """Copy a tensor of float32, bfloat16 or float16 into the model. Raises KernelError where it does not fit."""
        stored = str(tensor.dtype).removeprefix("torch.")
        if stored not in _TYPES or not tensor.is_contiguous():
            raise KernelError(f"{name} must be contiguous and of float32, bfloat16 or float16, got {stored}")
        rows, columns = (1, *tensor.shape)[-2:]
        status = self._library.mlk_set(
            self._model, TENSORS.index(name), layer, _TYPES[stored], tensor.data_ptr(), rows, columns
        )
        check(status, self._library)

    def run(
        self,
        ids: Iterable[int],
        slots: Iterable[int],
        positions: Iterable[int],
        output_rows: Iterable[int],
        *,
        samplers: Sequence[TokenSampler | None] | None = None,
        logits: int | None = None,
        logprobs: LogprobRoom | None = None,
    ) -> list[int]:
        """Read a step's rows and choose a token after each of the output rows; of ``NO_TOKEN`` where there is none.

        The rows of a slot stand together at ascending positions; ``output_rows`` ascend. Without samplers the most
        probable tokens are taken; a sampler chooses one token of a step. ``logits`` is the address of room for
        (outputs, vocab) floats, if they are wanted, ``logprobs`` room for those of the outputs that want any.
        """
        flat = [
            values if isinstance(values, array) else array("i", values)
            for values in (ids, slots, positions, output_rows)
        ]
        rows, outputs = len(flat[0]), len(flat[3])
        if len(flat[1]) != rows or len(flat[2]) != rows:
            raise KernelError(
                f"ids, slots and positions must be equally many, got {rows}, {len(flat[1])}, {len(flat[2])}"
            )
        if samplers is not None and len(samplers) != outputs:
            raise KernelError(f"samplers must be as many as output rows, {outputs}, got {len(samplers)}")
        tokens = array("i", bytes(4 * outputs))
        chosen = None
        if samplers is not None and any(samplers):
            chosen = (ctypes.c_void_p * outputs)(*(sampler.address if sampler else None for sampler in samplers))
        step = Step(
            rows,
            outputs,
            *(values.buffer_info()[0] for values in flat),
            logits,
            tokens.buffer_info()[0],
            ctypes.cast(chosen, ctypes.c_void_p) if chosen is not None else None,
            ctypes.pointer(logprobs.listing) if logprobs is not None else None,
        )
        check(self._library.mlk_run(self._model, ctypes.byref(step)), self._library)
        return tokens.tolist()

    def release(self, slot: int) -> None:
        """Give the memory of a slot's keys and values back; the slot itself can be used again at once."""
        self._library.mlk_release(self._model, slot)

    def use_threads(self, threads: int) -> int:
        """Compute with so many of the threads that were made; returns with how many."""
        return int(self._library.mlk_threads(self._model, threads))

    @property
    def weight_bytes(self) -> int:
        """What the weights take."""
        return int(self._library.mlk_weight_bytes(self._model))

    def close(self) -> None:
        """Let all memory and threads go."""
        if getattr(self, "_model", None):
            self._library.mlk_destroy(self._model)
            self._model = None

    def __del__(self) -> None:
        self.close()
