"""The compiled library, loaded once, with the signatures of ``source/minilab_kernels.h``. It must not know models."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

from minilab_gen.errors import MiniLabError
from minilab_gen.kernels.build import library_name

ABI = 7
"""Of ``minilab_kernels.h``, as this file spells it."""


class KernelError(MiniLabError):
    """The kernels are missing, do not fit this processor, or refused what they were given."""


class Shape(ctypes.Structure):
    """``mlk_shape``."""

    _fields_ = [
        *((name, c_int32) for name in ("vocab", "context", "layers", "heads", "kv_heads", "head_dim")),
        *((name, c_int32) for name in ("d_model", "d_hidden", "rope_dim", "tied", "learned_positions")),
        *((name, c_int32) for name in ("qkv_bias", "output_bias", "feed_forward_bias", "layer_norm")),
        *((name, c_int32) for name in ("pre_norm", "post_norm", "head_norm", "row_norm", "parallel")),
        *((name, c_int32) for name in ("gated", "activation")),
        *((name, c_double) for name in ("norm_eps", "gain_offset", "embedding_scale", "residual_scale")),
        *((name, c_double) for name in ("attention_scale", "logit_divisor")),
    ]


class Rope(ctypes.Structure):
    """``mlk_rope``."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "truncate")),
        *((name, c_double) for name in ("theta", "factor", "low", "high", "original", "attention")),
        ("divisors", POINTER(c_float)),
    ]


class Listing(ctypes.Structure):
    """``mlk_listing``; pointers are addresses."""

    _fields_ = [("most", c_int32), *((name, c_void_p) for name in ("counts", "judged", "of_tokens", "ids", "of_ids"))]


class Step(ctypes.Structure):
    """``mlk_step``; pointers are addresses."""

    _fields_ = [
        ("rows", c_int32),
        ("outputs", c_int32),
        *((name, c_void_p) for name in ("ids", "slots", "positions", "output_rows", "logits", "tokens", "samplers")),
        ("listing", POINTER(Listing)),
    ]


class Settings(ctypes.Structure):
    """``mlk_settings``."""

    _fields_ = [
        *((name, c_int32) for name in ("vocab", "biases")),
        *(("bias_ids", POINTER(c_int32)), ("bias", POINTER(c_float))),
        *((name, c_int32) for name in ("allowed", "stops")),
        *((name, POINTER(c_int32)) for name in ("allowed_ids", "stop_ids")),
        ("min_tokens", c_int64),
        *((name, c_int32) for name in ("bad_words", "longest_bad_word")),
        ("bad_word_ids", POINTER(c_int32)),
        *((name, c_float) for name in ("repetition_penalty", "frequency_penalty", "presence_penalty", "temperature")),
        ("top_k", c_int32),
        *((name, c_float) for name in ("top_p", "min_p")),
        ("seed", c_uint64),
    ]


_I32, _I64, _PTR = c_int32, c_int64, c_void_p
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "mlk_abi": (_I32, []),
    "mlk_numerics": (_I32, []),
    "mlk_build": (c_char_p, []),
    "mlk_error": (c_char_p, []),
    "mlk_backend": (c_char_p, []),
    "mlk_backends": (c_char_p, []),
    "mlk_backend_for": (c_char_p, [c_uint32, c_uint32, c_uint32]),
    "mlk_create": (_PTR, [POINTER(Shape), _I32, _I32, _I32]),
    "mlk_beside": (_PTR, [_PTR, _I32, _I32]),
    "mlk_destroy": (None, [_PTR]),
    "mlk_set": (_I32, [_PTR, _I32, _I32, _I32, _PTR, _I64, _I64]),
    "mlk_set_rope": (_I32, [_PTR, _I32, POINTER(Rope)]),
    "mlk_set_layer": (_I32, [_PTR, _I32, _I32, _I32]),
    "mlk_run": (_I32, [_PTR, POINTER(Step)]),
    "mlk_release": (None, [_PTR, _I32]),
    "mlk_threads": (_I32, [_PTR, _I32]),
    "mlk_weight_bytes": (_I64, [_PTR]),
    "mlk_sampler_create": (_PTR, [POINTER(Settings)]),
    "mlk_sampler_destroy": (None, [_PTR]),
    "mlk_sampler_begin": (_I32, [_PTR, _PTR, _I64, _PTR, _I64]),
    "mlk_sampler_mask": (_I32, [_PTR, _PTR]),
    "mlk_choose": (_I32, [_PTR, _I64, _I32, _I32, _PTR, _PTR]),
    "mlk_logprobs": (_I32, [_PTR, _I32, _I32, _I32, _PTR, _PTR, _PTR]),
    "mlk_probabilities": (_I32, [_PTR, _I32, _PTR, _PTR]),
    "mlk_rope_tables": (_I32, [POINTER(Rope), _I32, _I32, _PTR, _PTR]),
    "mlk_functions": (_I32, [_PTR] * 6 + [_I32, _I32]),
    "mlk_to_bfloat16": (None, [POINTER(c_float), POINTER(c_uint16), _I64]),
    "mlk_from_float16": (None, [POINTER(c_uint16), POINTER(c_float), _I64]),
    "mlk_logarithms": (None, [POINTER(c_double), POINTER(c_double), _I64]),
}


@functools.cache
def library(path: Path | None = None) -> ctypes.CDLL:
    """The library, the installed one if no other is named. Raises KernelError where it is missing or does not fit."""
    path = path or Path(__file__).parent / library_name()
    if not path.exists():
        raise KernelError(f"{path} is missing; `python -m minilab_gen.kernels.build` compiles it")
    try:
        loaded = ctypes.CDLL(str(path))
        found = loaded.mlk_abi()
    except (OSError, AttributeError) as error:
        raise KernelError(
            f"{path} cannot be loaded: {error}; `python -m minilab_gen.kernels.build` makes it anew"
        ) from error
    if found != ABI:
        raise KernelError(
            f"{path} must have interface {ABI}, got {found}; `python -m minilab_gen.kernels.build` makes it anew"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def check(status: int, loaded: ctypes.CDLL | None = None) -> None:
    """Raise KernelError with the library's message unless a call went well."""
    if status:
        raise KernelError((loaded or library()).mlk_error().decode())


def backend() -> str:
    """The back end in use: avx512, avx2, neon or plain. Raises KernelError where MINILAB_KERNELS names another."""
    name = library().mlk_backend()
    if name is None:
        raise KernelError(f"MINILAB_KERNELS must name one of: {', '.join(backends())}")
    return str(name.decode())


def backends() -> list[str]:
    """Those that run here, best first."""
    return str(library().mlk_backends().decode()).split()


def numerics() -> int:
    """The version of the bits: equal ones give equal logits and draws, whatever the processor and the build."""
    return int(library().mlk_numerics())
