"""The choices of one sequence, with the same bits on every processor.

The chain and the generator are those of :mod:`minilab_gen.sampling` and of torch's ``multinomial`` on the CPU.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from minilab_gen.kernels.library import KernelError, Settings, check, library
from minilab_gen.sampling_settings import SamplingSettings

NO_TOKEN: Final[Mapping[int, str]] = MappingProxyType(
    {
        -1: "non-finite logits",
        -2: "the settings leave no token that may be chosen",
        -3: "there is no memory for the sampler's notes, or it is of another vocabulary",
    }
)
"""Why there is no next token, by what stands in its place: ``mlk_no_token``."""


class TokenSampler:
    """Chooses the tokens of one sequence, with a generator of its own that moves once per token.

    It notes the tokens that it chooses. Before its first choice, ``begin`` tells it what stands already.
    """

    def __init__(self, settings: SamplingSettings, vocab_size: int, stop_ids: Collection[int] = ()) -> None:
        """``stop_ids`` are the request's, for ``min_tokens``. Raises KernelError for ids beyond the vocabulary."""
        self._library = library()
        self.settings, self._vocab_size = settings, vocab_size
        self.address: int | None = self._library.mlk_sampler_create(_settings_of(settings, vocab_size, stop_ids))
        if not self.address:
            raise KernelError(self._library.mlk_error().decode())

    def begin(self, prompt: Sequence[int] = (), answered: Sequence[int] = ()) -> None:
        """Tell a new sampler its prompt and what was answered before, so that a resumed sequence goes on as it would.

        Raises KernelError for ids beyond the vocabulary.
        """
        before = array("i", prompt if self.settings.edits_logits else ())  # no other setting looks at it
        after = array("i", answered)
        status = self._library.mlk_sampler_begin(
            self.address, before.buffer_info()[0], len(before), after.buffer_info()[0], len(after)
        )
        check(status, self._library)

    def mask(self, allowed: Iterable[int] | None) -> None:
        """Let only these ids be chosen from now on, within what the settings allow; None takes the mask away."""
        if allowed is None:
            self.mask_bits(None)
            return
        bits = bytearray((self._vocab_size + 31) // 32 * 4)
        for token in allowed:
            bits[token // 8] |= 1 << token % 8  # words are little-endian wherever this runs
        address = (ctypes.c_char * len(bits)).from_buffer(bits)
        self.mask_bits(ctypes.addressof(address))

    def mask_bits(self, address: int | None) -> None:
        """The same from the address of (vocab / 32) words of 32 bits, which are copied."""
        check(self._library.mlk_sampler_mask(self.address, address), self._library)

    def choose_at(self, logits: int) -> int:
        """The next token id from logits (vocab,) of float32 at an address; of ``NO_TOKEN`` where there is none."""
        token = ctypes.c_int32()
        samplers = (ctypes.c_void_p * 1)(self.address)
        status = self._library.mlk_choose(logits, 0, 1, self._vocab_size, samplers, ctypes.byref(token))
        check(status, self._library)
        return token.value

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.mlk_sampler_destroy(self.address)
            self.address = None


def needs_sampler(settings: SamplingSettings) -> bool:
    """Whether more is asked for than the highest of the model's logits, which needs none."""
    return settings.edits_logits or not settings.is_greedy


def _settings_of(settings: SamplingSettings, vocab_size: int, stop_ids: Collection[int]) -> Any:
    """The settings as the library takes them; they keep the lists alive that they point to."""
    bias, allowed = settings.logit_bias, settings.allowed_token_ids
    words = [number for word in settings.bad_words_ids for number in (len(word), *word)]
    return ctypes.byref(
        Settings(
            vocab=vocab_size,
            biases=len(bias),
            bias_ids=_numbers(ctypes.c_int32, bias),
            bias=_numbers(ctypes.c_float, bias.values()),
            allowed=-1 if allowed is None else len(allowed),
            allowed_ids=_numbers(ctypes.c_int32, allowed or ()),
            stops=len(stop_ids),
            stop_ids=_numbers(ctypes.c_int32, stop_ids),
            min_tokens=settings.min_tokens,
            bad_words=len(settings.bad_words_ids),
            longest_bad_word=max(map(len, settings.bad_words_ids), default=0),
            bad_word_ids=_numbers(ctypes.c_int32, words),
            repetition_penalty=settings.penalty,
            frequency_penalty=settings.frequency_penalty,
            presence_penalty=settings.presence_penalty,
            temperature=0.0 if settings.is_greedy else settings.divisor,
            top_k=min(settings.top_k or 0, 2**31 - 1),
            top_p=1.0 if settings.top_p is None else settings.top_p,
            min_p=settings.min_p,
            seed=settings.seed,
        )
    )


def _numbers(kind: Any, values: Collection[float]) -> Any:
    return (kind * len(values))(*values)
