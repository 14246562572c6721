"""OpenVINO GenAI as a peer: its continuous batching, in float32 throughout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]
from peer_protocol import Job, Load, Peer, main


def convert(checkpoint: Path, folder: Path) -> None:
    """Export through optimum-intel, with the weights as they are: large models would be quantised by default."""
    # Here, because torch comes along, which a round does not need.
    from optimum.intel import OVModelForCausalLM  # type: ignore[import-not-found]

    model = OVModelForCausalLM.from_pretrained(checkpoint, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(folder)


def load(settings: Load) -> Peer:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = settings.max_batch
    scheduler.max_num_batched_tokens = settings.max_batch * settings.max_tokens  # every prompt fits the first step
    scheduler.enable_prefix_caching = False  # jobs are the same in each round, and no other peer keeps what it has read
    properties = {
        "INFERENCE_NUM_THREADS": settings.threads,
        "INFERENCE_PRECISION_HINT": "f32",  # the default would be bfloat16 on a processor that has it
        "KV_CACHE_PRECISION": "f32",  # the default is u8
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": "LATENCY",  # one stream with all threads; the pipeline does the batching
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(settings.converted), scheduler, "CPU", properties)

    def run(jobs: list[Job]) -> list[list[int]]:
        prompts = [openvino.Tensor(np.array([job.prompt], np.int64)) for job in jobs]
        results = pipeline.generate(prompts, [_greedy(job.max_new_tokens) for job in jobs])
        return [list(result.m_generation_ids[0]) for result in results]

    return Peer(f"openvino-genai {openvino_genai.__version__}", run)


def _greedy(max_new_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_new_tokens
    config.do_sample = False
    config.ignore_eos = True
    return config


if __name__ == "__main__":
    main(load, convert)
