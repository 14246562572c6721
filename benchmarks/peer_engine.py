"""Our engine alone, as one more peer."""

from __future__ import annotations

import itertools

from peer_protocol import Job, Load, Peer, main

from minilab_gen import engine
from minilab_gen.kernels.decoder import WeightType
from minilab_gen.kernels.library import backend, numerics
from minilab_gen.models.checkpoint import load as load_model
from minilab_gen.request import GenerationRequest


def load(settings: Load) -> Peer:
    """The engine as a worker runs it, with a slot for every job."""
    weights: WeightType = "int8" if settings.weights == "int8" else "float32"
    ours = engine.Engine(load_model(settings.checkpoint, weights, threads=settings.threads), settings.max_batch)
    rounds = itertools.count()

    def run(jobs: list[Job]) -> list[list[int]]:
        this_round = next(rounds)
        sequences = []
        for number, job in enumerate(jobs):
            request = GenerationRequest(tuple(job.prompt), job.max_new_tokens)
            sequences.append(engine.Sequence(f"{this_round}-{number}", request))
            ours.add(sequences[-1])
        while ours.has_work:
            ours.step()
        return [sequence.ids[len(sequence.request.prompt) :] for sequence in sequences]

    return Peer(f"{backend()}, numerics {numerics()}", run)


if __name__ == "__main__":
    main(load)
