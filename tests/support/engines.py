"""Engines for a worker under test: one that is slow enough to act in the middle of a job, one that breaks."""

from __future__ import annotations

import time

from minilab_worker.serving import ServedModel
from minilab_worker.telemetry.counters import Counters

from minilab_gen.engine import Engine, Outcome


class SlowEngine(Engine):
    """Each step takes so many seconds longer."""

    pause = 0.01

    def step(self) -> list[Outcome]:
        time.sleep(self.pause)
        return super().step()


class BrokenEngine(Engine):
    """Its first step fails as a whole."""

    def step(self) -> list[Outcome]:
        raise RuntimeError("the engine is broken")


def slow_engine(served: ServedModel, max_batch: int, counters: Counters) -> SlowEngine:
    return SlowEngine(served.model, max_batch, kv_tokens=served.kv_tokens, on_phase=counters.clock.end_phase)


def slower_engine(served: ServedModel, max_batch: int, counters: Counters) -> Engine:
    """A job of 60 tokens outlives a timeout of a second."""
    engine = slow_engine(served, max_batch, counters)
    engine.pause = 0.03
    return engine


def very_slow_engine(served: ServedModel, max_batch: int, counters: Counters) -> Engine:
    """A job of 60 tokens outlives several renewals of a short lease."""
    engine = slow_engine(served, max_batch, counters)
    engine.pause = 0.1
    return engine


def broken_engine(served: ServedModel, max_batch: int, counters: Counters) -> Engine:
    return BrokenEngine(served.model, max_batch)
