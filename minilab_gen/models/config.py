"""The shape of a model, in numbers that are checked. It must know neither torch nor Redis.

A model is embeddings, layers and a head. A layer adds what attention gives, then what its feed-forward part gives, to
the residual stream; the fields say of which parts each is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from minilab_gen.models.rope_config import LongScaling, RopeConfig

Activation = Literal["silu", "gelu_tanh", "gelu"]
Naming = Literal["llama", "phi3", "gpt2", "gpt_neox"]
"""Whose names and layout the tensors of a checkpoint have."""


_PLAIN_ROPE: Final = RopeConfig()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model. The defaults are the shape of the shipped base model."""

    vocab_size: int = 2048
    context_length: int = 128
    n_layer: int = 4
    n_head: int = 8
    n_kv_head: int = 1
    d_model: int = 256
    d_hidden: int = 512
    own_head_dim: int | None = None
    """The size of a head where it is not ``d_model / n_head``."""
    tied_embeddings: bool = True

    rope: RopeConfig = _PLAIN_ROPE
    windowed_rope: RopeConfig | None = None
    """That of layers with a window, where it is another."""
    rope_dim: int | None = None
    """How many dimensions of a head positions turn, the first ones; None is all of them, 0 none."""
    unturned_layers: tuple[int, ...] = ()
    """Layers without rotary positions."""
    learned_positions: bool = False
    """Whether each position has an embedding that is added to those of tokens."""
    windows: tuple[int | None, ...] = ()
    """Of each layer, how many positions a token attends to, up to its own; None is all, and so is an empty tuple."""

    norm_eps: float = 1e-5
    layer_norm: bool = False
    """Whether norms take the mean away and have biases; else they are RMS norms."""
    gain_from_one: bool = False
    """Whether stored gains of norms are what is added to 1."""
    pre_norm: bool = True
    """Whether what a part reads is normed."""
    post_norm: bool = False
    """Whether what a part adds to the residual stream is."""
    head_norm: bool = False
    """Whether each query and key head is normed before it is turned."""
    row_norm: bool = False
    """The same of all query heads together, and of all key heads."""

    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether what attention adds to the residual stream has one."""
    feed_forward_bias: bool = False
    """Whether the products of the feed-forward part have one."""
    activation: Activation = "silu"
    gated: bool = True
    """Whether activations multiply a product of their own."""
    parallel: bool = False
    """Whether both parts of a layer read what the layer was given."""

    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What is multiplied by it is what a part adds."""
    attention_scale: float | None = None
    """What scores are multiplied by; None is ``head_dim ** -0.5``."""
    logit_divisor: float = 1.0
    naming: Naming = "llama"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_kind(field.name, str(field.type), getattr(self, field.name))
        own = self.own_head_dim
        if own is not None and (own < 1 or own % 2):
            raise ValueError(f"head_dim must be an even number above 0, got {own!r}")
        if own is None and (self.d_model % self.n_head or self.head_dim % 2):
            came = f"{self.d_model} and {self.n_head}"
            raise ValueError(f"d_model must be n_head times an even number, got {came}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")
        if self.turned_dim % 2 or not 0 <= self.turned_dim <= self.head_dim:
            raise ValueError(f"rope_dim must be even and at most {self.head_dim}, got {self.turned_dim}")
        self._check_layers()

    def _check_layers(self) -> None:
        if self.windows and len(self.windows) != self.n_layer:
            raise ValueError(f"windows must be given for all {self.n_layer} layers, got {len(self.windows)}")
        for window in self.windows:
            if window is not None and (type(window) is not int or window < 1):
                raise ValueError(f"a window must be an integer of at least 1, got {window!r}")
        for rope in self.ropes:
            if isinstance(rope.scaling, LongScaling) and len(rope.scaling.divisors) != self.turned_dim // 2:
                divisors, half = len(rope.scaling.divisors), self.turned_dim // 2
                raise ValueError(f"the factors of longrope must be {half}, half the turned dimensions, got {divisors}")

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.d_model // self.n_head

    @property
    def turned_dim(self) -> int:
        """Dimensions of a head that rotary positions turn."""
        return self.head_dim if self.rope_dim is None else self.rope_dim

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotary positions that layers have."""
        if self.turned_dim == 0:
            return ()
        return (self.rope,) if self.windowed_rope is None else (self.rope, self.windowed_rope)

    def window_of_layer(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def rope_of_layer(self, layer: int) -> int | None:
        """Which of :attr:`ropes` a layer has, if it has one."""
        if self.turned_dim == 0 or layer in self.unturned_layers:
            return None
        return 1 if self.windowed_rope is not None and self.window_of_layer(layer) is not None else 0

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Features of all queries, of all keys and of all values."""
        key_or_value = self.n_kv_head * self.head_dim
        return self.n_head * self.head_dim, key_or_value, key_or_value

    @property
    def multiplications(self) -> int:
        """Multiplications for one token, without attention: the numbers in all matrices."""
        heads = sum(self.qkv_sizes) + self.qkv_sizes[0]
        hidden = self.d_hidden * (3 if self.gated else 2)
        return self.n_layer * self.d_model * (heads + hidden) + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """The numbers in all matrices, embedding included; without the vectors of norms and biases, a thousandth."""
        learned = self.context_length * self.d_model if self.learned_positions else 0
        return self.multiplications + learned + (0 if self.tied_embeddings else self.vocab_size * self.d_model)


def _check_kind(name: str, kind: str, value: Any) -> None:
    """Raise ValueError where a number is not of its kind: an integer or a number above 0, true or false."""
    if value is None and kind.endswith("| None"):
        return
    kind = kind.removesuffix(" | None")
    least = 0 if name == "rope_dim" else 1
    if kind == "int" and name == "own_head_dim" and type(value) is not int:
        raise ValueError(f"head_dim must be an even number above 0, got {value!r}")
    if kind == "int" and name != "own_head_dim" and (type(value) is not int or value < least):
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if kind == "float" and (type(value) not in (int, float) or not 0 < value < float("inf")):
        raise ValueError(f"{name} must be a number above 0, got {value!r}")
    if kind == "bool" and type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {value!r}")
