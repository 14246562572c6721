"""The reference: one sequence, one token at a time, the plain loop that everything else must agree with.

It must not know Redis. ``python -m minilab_gen.generate`` demonstrates it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minilab_gen.constraint import Constraint
from minilab_gen.kernels.logprobs import logprobs_at
from minilab_gen.logprobs import MOST_LISTED, TokenLogprobs
from minilab_gen.models.checkpoint import load
from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.kernel_model import KernelModel
from minilab_gen.models.kv_cache import KVCache
from minilab_gen.request import GREEDY, GenerationRequest, ModelLimits, SamplingSettings
from minilab_gen.sampling import NonFiniteLogitsError, NoTokenLeftError, Sampler, next_token_probabilities
from minilab_gen.text.tokenizer import BASE_CHECKPOINT, get_tokenizer

Model = KernelModel | MiniLabModel
"""Either is called in the same way. The kernels' bits are the same everywhere; torch's are not."""

__all__ = ["GREEDY", "SamplingSettings", "Step", "generate", "logprobs", "next_token_probabilities"]


class Step(NamedTuple):
    """A chosen token and the logits (vocab,) that it was chosen from."""

    token_id: int
    logits: Tensor


def generate(
    model: Model,
    prompt: Sequence[int] | Tensor,
    max_new_tokens: int,
    settings: SamplingSettings = GREEDY,
    stop_id: int | Collection[int] | None = None,
    use_cache: bool = True,
    cache: KVCache | None = None,
    *,
    constraint: Constraint | None = None,
) -> Iterator[Step]:
    """Yield each token as it is chosen, the stop token included, until it, ``max_new_tokens`` or a full context.

    ``cache`` must be empty; it shows what was projected, also where ``use_cache`` is False and every step reads the
    whole sequence again. ``constraint`` is that of a form at its beginning; where nothing may follow, the answer ends
    without a stop token. Raises ValueError at the call for a prompt that does not hold 1 to context_length - 1 known
    ids, and for settings out of their range.
    """
    if isinstance(prompt, Tensor) and prompt.dim() > 1 and prompt.shape[:-1].numel() != 1:
        raise ValueError(f"a prompt must be one sequence, got a tensor of shape {tuple(prompt.shape)}")
    ids = prompt.flatten().tolist() if isinstance(prompt, Tensor) else prompt
    stop_ids = () if stop_id is None else (stop_id,) if isinstance(stop_id, int) else tuple(stop_id)
    request = GenerationRequest(tuple(ids), max_new_tokens, settings, stop_ids)
    request.check_fits(ModelLimits(model.config.vocab_size, model.config.context_length))
    if cache is None:
        cache = KVCache(model.config.n_layer)
    elif cache.length:
        raise ValueError(f"cache must be empty, got one that holds {cache.length} tokens")
    return _steps(model, request, use_cache, cache, constraint)


def logprobs(logits: Tensor, token_id: int, count: int = 0) -> TokenLogprobs:
    """The logprob of a token, and those of the ``count`` most probable ones, from logits (vocab,): their log_softmax.

    Settings have no part in it. Raises ValueError where an argument is out of range, NonFiniteLogitsError where no
    token can be chosen from the logits.
    """
    if not 0 <= count <= MOST_LISTED:
        raise ValueError(f"count must be 0 to {MOST_LISTED}, got {count}")
    if not 0 <= token_id < len(logits):
        raise ValueError(f"token_id must be 0 to {len(logits) - 1}, got {token_id}")
    row = logits.to("cpu", torch.float32).contiguous()
    found = logprobs_at(row.data_ptr(), len(row), token_id, count)
    if found is None:
        raise NonFiniteLogitsError(f"non-finite logits: the highest is {row.max().item()}")
    return found


@torch.no_grad()
def _steps(
    model: Model, request: GenerationRequest, use_cache: bool, cache: KVCache, constraint: Constraint | None
) -> Iterator[Step]:
    sampler = Sampler(request.settings, model.config.vocab_size, request.stop_ids)
    sampler.begin(request.prompt)
    ids = list(request.prompt)
    for _ in range(request.longest_answer(model.config.context_length)):
        if constraint is not None:
            if constraint.error is not None:
                raise NoTokenLeftError(constraint.error)
            if constraint.must_end:
                return
            sampler.mask_bits(constraint.mask(request.stop_ids))
        logits = _next_logits(model, ids, use_cache, cache)
        token_id = sampler.choose(logits)
        yield Step(token_id, logits)
        if token_id in request.stop_ids:
            return
        ids.append(token_id)
        if constraint is not None:
            constraint.accept(token_id)
            constraint.prepare([constraint])


def _next_logits(model: Model, ids: list[int], use_cache: bool, cache: KVCache) -> Tensor:
    """Logits (vocab,) after ids: of the tokens that the cache lacks, or of all of them, read afresh."""
    reader = cache if use_cache else KVCache(model.config.n_layer)
    unread = torch.tensor([ids[reader.length :]], device=model.device)
    logits, _ = model(unread, cache=reader)
    if reader is not cache:
        cache.projected += reader.projected
    last: Tensor = logits[0, -1]
    return last


# The demonstration -----------------------------------------------------------------------------------------------

_PROMPT = "Phileas Fogg"
_DEMONSTRATION_TOKENS = 60
_BENCHMARK_TOKENS = 126
"""With the prompt of 2 ids these fill the context of the base model, 128."""

_STRATEGIES = {
    "greedy": GREEDY,
    "T=0.8": SamplingSettings(temperature=0.8, seed=1),
    "T=0.8 top-k 20": SamplingSettings(temperature=0.8, top_k=20, seed=1),
    "T=0.8 top-p 0.9": SamplingSettings(temperature=0.8, top_p=0.9, seed=1),
    "T=1.5": SamplingSettings(temperature=1.5, seed=1),
}


def demonstrate() -> None:
    """Print five decoding strategies after "Phileas Fogg", then what the cache saves."""
    model, tokenizer = load(BASE_CHECKPOINT), get_tokenizer()
    prompt = tokenizer.encode(_PROMPT)
    for name, settings in _STRATEGIES.items():
        print(f"--- {name}")
        decoder = tokenizer.decoder(prompt)
        print(_PROMPT, end="")
        for step in generate(model, prompt, _DEMONSTRATION_TOKENS, settings):
            print(decoder.push(step.token_id), end="", flush=True)
        print(decoder.flush())
    print(f"--- cache: {_BENCHMARK_TOKENS} greedy tokens after {len(prompt)}")
    compare_with_and_without_cache(model, prompt)


def compare_with_and_without_cache(model: Model, prompt: Sequence[int]) -> None:
    """Print whether both ways agree, the largest gap of a logit, the times, and the projections of each."""
    list(generate(model, prompt, 8))  # warm-up
    plain, plain_seconds, plain_projected = _timed_run(model, prompt, use_cache=False)
    cached, cached_seconds, cached_projected = _timed_run(model, prompt, use_cache=True)
    gap = max(float((a.logits - b.logits).abs().max()) for a, b in zip(plain, cached, strict=True))
    print(f"same tokens: {[step.token_id for step in plain] == [step.token_id for step in cached]}")
    print(f"largest logit gap: {gap}")
    print(f"without cache: {plain_seconds:.3f} s, {plain_projected} projections")
    print(f"with cache:    {cached_seconds:.3f} s, {cached_projected} projections")
    print(f"the cache is {plain_seconds / cached_seconds:.1f} times as fast", end=" ")
    print(f"and saves {plain_projected - cached_projected} projections")


def _timed_run(model: Model, prompt: Sequence[int], *, use_cache: bool) -> tuple[list[Step], float, int]:
    cache = KVCache(model.config.n_layer)
    start = time.perf_counter()
    steps = list(generate(model, prompt, _BENCHMARK_TOKENS, use_cache=use_cache, cache=cache))
    return steps, time.perf_counter() - start, cache.projected


if __name__ == "__main__":
    demonstrate()
