"""Random combinations of all sampling settings."""

from __future__ import annotations

import random

from minilab_gen.sampling_settings import SamplingSettings


def random_settings(pick: random.Random, vocab_size: int) -> SamplingSettings:
    """Some settings on, others off; never without a token that may be chosen, whatever the stop ids below 8 are."""

    def ids(most: int) -> tuple[int, ...]:
        return tuple(pick.randrange(vocab_size) for _ in range(pick.randint(1, most)))

    free = range(vocab_size // 2, vocab_size // 2 + 4)  # which no bad word ends in, and no stop id is
    words = tuple(word for word in (ids(3) for _ in range(pick.choice([0, 1, 12]))) if word[-1] not in free)
    return SamplingSettings(
        temperature=pick.choice([0.0, 0.7, 1.0, 1.5]),
        top_k=pick.choice([None, None, 2, 20]),
        top_p=pick.choice([None, None, 0.5, 0.9]),
        seed=pick.randrange(2**32),
        min_p=pick.choice([0.0, 0.0, 0.05, 0.3, 1.0]),
        repetition_penalty=pick.choice([1.0, 1.3, 0.8, 2.0]),
        presence_penalty=pick.choice([0.0, 0.0, 1.5, -1.0]),
        frequency_penalty=pick.choice([0.0, 0.0, 0.4, 2.0, -0.5]),
        logit_bias={token: pick.uniform(-100, 100) / 20 for token in ids(8)} if pick.random() < 0.4 else {},
        min_tokens=pick.choice([0, 0, 1, 4]),
        allowed_token_ids=(*free, *ids(30)) if pick.random() < 0.3 else None,
        bad_words_ids=words,
    )
