"""The draws of one sequence, with the same bits on every processor.

The chain and the generator are those of :mod:`minilab_gen.sampling` and of torch's ``multinomial`` on the CPU.
"""

from __future__ import annotations

import ctypes

from minilab_gen.kernels.library import KernelError, check, library
from minilab_gen.request import SamplingSettings


class TokenSampler:
    """Chooses the tokens of one sequence, with a generator of its own that moves once per token."""

    def __init__(self, settings: SamplingSettings, vocab_size: int) -> None:
        self._library = library()
        self.settings, self._vocab_size = settings, vocab_size
        temperature = 0.0 if settings.is_greedy else settings.divisor
        top_p = 1.0 if settings.top_p is None else settings.top_p
        self.address: int | None = self._library.mlk_sampler_create(
            settings.seed, temperature, min(settings.top_k or 0, 2**31 - 1), top_p
        )
        if not self.address:
            raise KernelError("there is no memory for a sampler")

    def choose_at(self, logits: int) -> int:
        """The next token id from logits (vocab,) of float32 at an address; -1 where they are not finite."""
        token = ctypes.c_int32()
        samplers = (ctypes.c_void_p * 1)(self.address)
        status = self._library.mlk_choose(logits, 0, 1, self._vocab_size, samplers, ctypes.byref(token))
        check(status, self._library)
        return token.value

    def skip(self, tokens: int) -> None:
        """Move the generator past tokens that were chosen before, so that a resumed sequence goes on as it would."""
        self._library.mlk_sampler_skip(self.address, self._vocab_size, tokens)

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.mlk_sampler_destroy(self.address)
            self.address = None
