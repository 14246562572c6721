"""onnxruntime-genai as a peer: its generator, for one job after another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai  # type: ignore[import-not-found]
from peer_protocol import Job, Load, Peer, main


def convert(checkpoint: Path, folder: Path) -> None:
    """Build the graph with the library's own model builder, in float32."""
    builder = (sys.executable, "-m", "onnxruntime_genai.models.builder", "--precision", "fp32")
    where = ("--input", str(checkpoint), "--output", str(folder), "--cache_dir", str(folder / "cache"))
    subprocess.run((*builder, "--execution_provider", "cpu", *where), check=True, stdin=subprocess.DEVNULL)


def load(settings: Load) -> Peer:
    _set_threads(settings.converted / "genai_config.json", settings.threads)
    model = genai.Model(str(settings.converted))

    def answer(job: Job) -> list[int]:
        options = genai.GeneratorParams(model)
        options.set_search_options(do_sample=False, max_length=len(job.prompt) + job.max_new_tokens)
        generator = genai.Generator(model, options)
        generator.append_tokens(np.array([job.prompt], np.int32))
        tokens: list[int] = []
        while len(tokens) < job.max_new_tokens:
            if tokens and generator.is_done():  # a stop token, which every model must have here: go on behind it
                generator.rewind_to(len(job.prompt) + len(tokens) - 1)
                generator.append_tokens(np.array([tokens[-1:]], np.int32))
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return tokens

    return Peer(f"onnxruntime-genai {genai.__version__}", lambda jobs: [answer(job) for job in jobs])


def _set_threads(file: Path, threads: int) -> None:
    """Write them where the library reads them."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    file.write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main(load, convert)
