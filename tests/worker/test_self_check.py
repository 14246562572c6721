"""What a worker does before it serves: it checks a machine's exactness within limits, and says how far it is."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from minilab_worker import serving
from minilab_worker.self_check import Verdict, check_exactness
from minilab_worker.serving import Progress, load_served_model
from support.small_models import random_model, threads
from torch import Tensor

from minilab_gen.models.decoder import MiniLabModel
from minilab_gen.models.linear import Linear

SEQUENCES = (1 + 1) + (3 + 1) + (4 + 1) + (8 + 1)
"""Of a worker with 4 slots: one more than slots, for each size of batch."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on products this small only wait for each other."""
    with threads(1):
        yield


class Drifting(Linear):
    """A layer whose rows depend on how many stand beside them, as those of most libraries do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 1e-6 * (len(x) % 3))


def drifting_model() -> MiniLabModel:
    model = random_model().freeze(packed=False)
    head = Drifting(model.config.d_model, model.config.vocab_size)
    head.load_state_dict(model.head.state_dict())
    model.head = head
    return model.freeze(packed=False)


def test_a_check_that_has_time_compares_every_sequence() -> None:
    told: list[tuple[int, int]] = []

    verdict = check_exactness(random_model().freeze(), 4, 1, seconds=600, on_progress=lambda *done: told.append(done))

    assert (verdict.sequences, verdict.planned) == (SEQUENCES, SEQUENCES)
    assert str(verdict) == f"exact: {verdict.rows} rows of logits equal bit for bit"
    assert verdict.rows > 2 * SEQUENCES
    assert told[-1] == (SEQUENCES, SEQUENCES)
    assert told == sorted(told)


def test_a_check_without_time_compares_one_sequence_of_each_size_of_batch_and_says_so() -> None:
    verdict = check_exactness(random_model().freeze(), 4, 1, seconds=0)

    assert (verdict.sequences, verdict.planned) == (4, SEQUENCES)
    assert verdict.is_exact
    assert str(verdict).endswith(f" bit for bit, in 4 of {SEQUENCES} sequences: checked for 0 s, then stopped")


def test_a_check_ends_when_its_time_is_over() -> None:
    model = random_model().freeze()
    quick = model.forward

    def slow(ids: Tensor) -> tuple[Tensor, Tensor | None]:
        time.sleep(0.1)  # 20 sequences take two seconds
        return quick(ids)

    model.forward = slow  # type: ignore[method-assign, assignment]
    verdict = check_exactness(model, 4, 1, seconds=0.8)

    assert 4 <= verdict.sequences < SEQUENCES
    assert verdict.seconds > 0.3


@pytest.mark.parametrize("seconds", [0, 600])
def test_a_machine_that_is_not_exact_is_found_out_also_when_there_is_no_time(seconds: float) -> None:
    verdict = check_exactness(drifting_model(), 4, 1, seconds=seconds)

    assert not verdict.is_exact
    assert str(verdict).startswith(
        f"not exact: {verdict.different} of {verdict.rows} rows of logits differ, by at most "
    )


def test_a_model_that_is_not_exact_packed_is_served_padded(
    small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [Verdict(rows=9, different=1, gap=1e-6), Verdict(rows=9)]
    checked: list[MiniLabModel] = []

    def check(model: MiniLabModel, *_: object, **__: object) -> Verdict:
        checked.append(model)
        return verdicts[len(checked) - 1]

    monkeypatch.setattr(serving, "check_exactness", check)
    served = load_served_model(small_checkpoint, "x", max_batch=1, threads=1)

    assert served.card.exactness == "exact: 9 rows of logits equal bit for bit"
    assert served.model is checked[1]
    assert served.model.head.weight.numel() > 0, "a packed layer has let its weight go"


def test_bfloat16_is_served_and_exact_on_every_processor(small_checkpoint: Path) -> None:
    served = load_served_model(small_checkpoint, "x", max_batch=2, threads=1, dtype="bfloat16")

    assert served.model.dtype == torch.bfloat16
    assert served.verdict.is_exact


def test_a_start_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(serving, "_PROGRESS_SECONDS", 0.0)

    with caplog.at_level(logging.INFO):
        Progress().of("checking exactness", "sequences")(3, 12)

    assert caplog.messages == ["checking exactness: 3 of 12 sequences"]


def test_each_phase_of_a_start_says_how_far_it_is(
    small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_PROGRESS_SECONDS", 0.0)

    with caplog.at_level(logging.INFO):
        load_served_model(small_checkpoint, "x", max_batch=1, threads=None, most_threads=2)

    assert any(line.startswith("loading the model: 1 of ") for line in caplog.messages)
    assert any(line.startswith("computing with ") for line in caplog.messages)
    assert any(line.startswith("checking exactness: ") and line.endswith(" sequences") for line in caplog.messages)


def test_a_quick_start_says_nothing_of_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_PROGRESS_SECONDS", 60.0)

    with caplog.at_level(logging.INFO):
        Progress().of("checking exactness", "sequences")(3, 12)

    assert caplog.messages == []


def test_the_worker_says_that_it_starts_before_it_loads_torch(small_checkpoint: Path, server_url: str) -> None:
    program = """
import logging, sys
class Seen(logging.Handler):
    def emit(self, record):
        if "loading it" in record.getMessage():
            print("torch" in sys.modules, flush=True)
logging.getLogger("minilab_worker.cli").addHandler(Seen())
from minilab_worker.cli import main
main()
"""
    arguments = ["--model", str(small_checkpoint), "--name", "x", "--redis-url", server_url, "--burst"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.stdout.split() == ["False"], ended.stderr
