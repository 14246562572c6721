"""The shape of a model, in numbers that are checked. It must know neither torch nor Redis."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3 stretches the angles that turn slowly, so that a context longer than the trained one fits."""

    factor: float
    """What the slowest angles are divided by."""
    low_freq_factor: float
    """Angles that turn less often than this within the trained context are divided."""
    high_freq_factor: float
    """Angles that turn more often than this stay; those between are mixed."""
    original_max_position_embeddings: int
    """Tokens of the trained context."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise ValueError(f"{field.name} must be a number above 0, got {value!r}")
        if self.low_freq_factor >= self.high_freq_factor:
            came = f"{self.low_freq_factor} and {self.high_freq_factor}"
            raise ValueError(f"low_freq_factor must be below high_freq_factor, got {came}")


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
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied_embeddings: bool = True
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether what attention adds to the residual stream has one."""
    head_norm: bool = False
    """Whether each query and key head is normed before it is turned."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} must be an integer of at least 1, got {value!r}")
            if field.type == "float" and (type(value) not in (int, float) or not 0 < value < float("inf")):
                raise ValueError(f"{field.name} must be a number above 0, got {value!r}")
            if field.type == "bool" and type(value) is not bool:
                raise ValueError(f"{field.name} must be true or false, got {value!r}")
        own = self.own_head_dim
        if own is not None and (type(own) is not int or own < 1 or own % 2):
            raise ValueError(f"head_dim must be an even number above 0, got {own!r}")
        if own is None and (self.d_model % self.n_head or self.head_dim % 2):
            came = f"{self.d_model} and {self.n_head}"
            raise ValueError(f"d_model must be n_head times an even number, got {came}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.d_model // self.n_head

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Features of all queries, of all keys and of all values."""
        key_or_value = self.n_kv_head * self.head_dim
        return self.n_head * self.head_dim, key_or_value, key_or_value

    @property
    def multiplications(self) -> int:
        """Multiplications for one token, without attention: the numbers in all matrices."""
        heads = sum(self.qkv_sizes) + self.qkv_sizes[0]
        return self.n_layer * self.d_model * (heads + 3 * self.d_hidden) + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """The numbers in all matrices, embedding included; without the vectors of norms and biases, a thousandth."""
        return self.multiplications + (0 if self.tied_embeddings else self.vocab_size * self.d_model)
