"""onnxruntime-genai as a peer: its generator, for one job after another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai  # type: ignore[import-not-found]
from peer_protocol import Job, Load, Peer, main


def convert(checkpoint: Path, folder: Path) -> None:
    """Build the graph with the library's own model builder, in float32."""
    # Here, because torch comes along, which a round does not need.
    from onnxruntime_genai.models.builder import create_model  # type: ignore[import-not-found]

    create_model(
        None,
        str(checkpoint),
        str(folder),
        precision="fp32",
        execution_provider="cpu",
        cache_dir=str(folder / "cache"),
    )


def load(settings: Load) -> Peer:
    _set_threads(settings.converted / "genai_config.json", settings.threads)
    model = genai.Model(str(settings.converted))

    def answer(job: Job) -> list[int]:
        options = genai.GeneratorParams(model)
        options.set_search_options(do_sample=False, max_length=len(job.prompt) + job.max_new_tokens)
        generator = genai.Generator(model, options)
        generator.append_tokens(np.array([job.prompt], np.int32))
        for _ in range(job.max_new_tokens):
            generator.generate_next_token()
        tokens: list[int] = generator.get_sequence(0)[len(job.prompt) :].tolist()
        return tokens

    return Peer(f"onnxruntime-genai {genai.__version__}", lambda jobs: [answer(job) for job in jobs])


def _set_threads(file: Path, threads: int) -> None:
    """Write the threads, and no token that would end an answer early, where the library reads them."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    config["model"]["eos_token_id"] = -1
    file.write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main(load, convert)
