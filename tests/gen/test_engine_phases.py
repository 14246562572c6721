"""A clock beside the engine is told each phase of a step as it ends."""

from __future__ import annotations

from support.watched_engine import Watched, request_of

from minilab_gen.engine import Phase


def phases_of_each_step(watched: Watched, told: list[Phase], steps: int) -> list[list[Phase]]:
    seen = []
    for _ in range(steps):
        told.clear()
        watched.step()
        seen.append(list(told))
    return seen


def test_a_prompt_is_read_in_a_prefill_and_tokens_after_it_in_decodes() -> None:
    told: list[Phase] = []
    watched = Watched(on_phase=told.append)
    watched.add("a", request_of(3, max_new_tokens=2))

    first, second = phases_of_each_step(watched, told, 2)

    assert first == ["plan", "prefill", "settle"]
    assert second == ["plan", "decode", "settle"]


def test_a_step_that_chooses_nothing_has_no_head_and_no_sampling() -> None:
    told: list[Phase] = []
    watched = Watched(on_phase=told.append, prefill_tokens=8)
    watched.add("a", request_of(20, max_new_tokens=1))

    half, more, rest = phases_of_each_step(watched, told, 3)

    assert half == more == ["plan", "prefill", "settle"]
    assert rest == ["plan", "prefill", "settle"]


def test_a_step_that_reads_a_prompt_beside_others_is_a_prefill() -> None:
    told: list[Phase] = []
    watched = Watched(on_phase=told.append)
    watched.add("a", request_of(3, max_new_tokens=8))
    watched.step()
    watched.add("b", request_of(5, max_new_tokens=8))

    both, decode = phases_of_each_step(watched, told, 2)

    assert ("prefill" in both, "decode" in both) == (True, False)
    assert ("prefill" in decode, "decode" in decode) == (False, True)
