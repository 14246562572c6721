"""Which other back ends a run tries, and that a choice really changes what is used."""

from __future__ import annotations

import os
import subprocess
import sys

from other_processor import BACKENDS, FILES, TESTS, describe, others

from minilab_gen.kernels.library import backend, backends


def test_every_back_end_is_used_tried_or_said_to_be_skipped() -> None:
    assert {name for name, _ in others()} == set(BACKENDS) - {backend()}
    assert [name for name, can_run in others() if can_run] == [name for name in BACKENDS if name in backends()[1:]]


def test_a_choice_makes_another_process_compute_with_it() -> None:
    program = "from minilab_gen.kernels.library import backend; print(backend())"
    environment = {**os.environ, "MINILAB_KERNELS": "plain"}

    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert told.stdout == "plain\n"


def test_the_files_that_are_run_again_are_there() -> None:
    assert [file for file in FILES if not (TESTS / file).exists()] == []


def test_a_description_names_the_processor_and_the_kernels() -> None:
    told = describe()

    assert told.startswith("processor: ")
    assert f"kernels: {backend()} of " in told
