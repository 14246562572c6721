"""transformers as two peers: ``generate`` for one job after another, and its continuous batching.

Called with ``one-by-one`` or ``continuous``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from peer_protocol import Job, Load, Peer, main

_library: Any = transformers  # parts of it carry no types
_VERSION = f"transformers {transformers.__version__}"
_NO_STOP = -1
"""No token has this id."""


def _load_model(settings: Load) -> Any:
    torch.set_num_threads(settings.threads)
    model = _library.AutoModelForCausalLM.from_pretrained(
        settings.checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


def load_one_by_one(settings: Load) -> Peer:
    """What a program without a batching engine does: a call of ``generate`` for each job."""
    model = _load_model(settings)
    # A fresh one, since the checkpoint's would end an answer at its end-of-text token.
    model.generation_config = _library.GenerationConfig(do_sample=False)

    def answer(job: Job) -> list[int]:
        prompt = torch.tensor([job.prompt])
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=job.max_new_tokens)
        tokens: list[int] = ids[0, len(job.prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def run(jobs: list[Job]) -> list[list[int]]:
        return [answer(job) for job in jobs]

    return Peer(_VERSION, run)


def load_continuous(settings: Load) -> Peer:
    """The manager that ``transformers serve`` uses, kept running between rounds.

    Not compiled: with its own compile level 1 it ran at a quarter of the speed, compiling anew for each batch size.
    """
    model = _load_model(settings)
    settings = _library.ContinuousBatchingConfig(
        page_size=settings.max_tokens,  # a page for each job; smaller pages were no faster
        num_blocks=settings.max_batch,  # the default takes most of the machine's memory
        max_batch_tokens=settings.max_batch * settings.max_tokens,  # every prompt fits the first step
        max_requests_per_batch=settings.max_batch,
        allow_block_sharing=False,  # jobs are the same in each round, and no other peer keeps what it has read
    )
    greedy = _library.GenerationConfig(do_sample=False, eos_token_id=_NO_STOP, max_new_tokens=settings.max_tokens)
    manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=settings)
    manager.start()

    def run(jobs: list[Job]) -> list[list[int]]:
        names = [
            manager.add_request(job.prompt, max_new_tokens=job.max_new_tokens, eos_token_id=_NO_STOP) for job in jobs
        ]
        answers: dict[str, list[int]] = {}
        while len(answers) < len(names):
            result = manager.get_result(timeout=1)
            assert manager.is_running(), "the manager's thread must outlive the round"
            if result is not None and result.is_finished():
                answers[result.request_id] = list(result.generated_tokens)
        return [answers[name] for name in names]

    return Peer(_VERSION, run)


if __name__ == "__main__":
    main({"one-by-one": load_one_by_one, "continuous": load_continuous}[sys.argv[1]])
