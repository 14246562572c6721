"""The model's names in one module, for programs and lessons: ``from minilab_gen.model import load``."""

from minilab_gen.models.checkpoint import load, read_model
from minilab_gen.models.config import ModelConfig
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.kv_cache import KVCache

__all__ = ["KVCache", "KernelModel", "MiniLabModel", "ModelConfig", "load", "read_model"]
