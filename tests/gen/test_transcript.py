"""What job runs share: the transcript, from token to end and from a stream on; and how an outage is counted."""

from __future__ import annotations

import pytest

from minilab_gen.protocol.events import EndEvent, Event, TokenEvent
from minilab_gen.protocol.outage import Outage
from minilab_gen.protocol.transcript import Transcript
from minilab_gen.request import GenerationRequest, SamplingSettings
from minilab_gen.text.tokenizer import Tokenizer, get_tokenizer

REQUEST = GenerationRequest((5, 6), 10, stop_ids=(7,))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return get_tokenizer()


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, bare=True)


def written(tokenizer: Tokenizer, text: str) -> Transcript:
    transcript = Transcript(REQUEST, tokenizer)
    for token_id in ids_of(tokenizer, text):
        transcript.add(token_id)
    return transcript


def test_the_texts_of_its_events_joined_are_the_text(tokenizer: Tokenizer) -> None:
    text = "Déjà vu, dit Passepartout. 😀"

    transcript = written(tokenizer, text)
    transcript.close("length")

    assert transcript.text == text
    assert [event.number for event in transcript.events] == list(range(1, transcript.tokens + 2))
    assert transcript.result()["ids"] == ids_of(tokenizer, text) == transcript.ids


def test_a_stop_token_counts_and_adds_no_text(tokenizer: Tokenizer) -> None:
    transcript = written(tokenizer, "un")

    transcript.add(7)
    end = transcript.close("stop", stop_id=7)

    assert (transcript.text, end.tokens) == ("un", len(ids_of(tokenizer, "un")) + 1)


def test_a_stop_text_counts_only_after_min_tokens_also_where_a_worker_takes_over(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, "a.b.c")]
    assert len(ids) == 5

    for min_tokens, text in ((0, "a"), (1, "a"), (2, "a.b"), (4, "a.b.c"), (5, "a.b.c")):
        request = GenerationRequest((5,), 10, SamplingSettings(min_tokens=min_tokens), stop=(".",))
        for taken_over in range(len(ids)):
            whole = Transcript(request, tokenizer)
            for number, token_id in enumerate(ids):
                if number == taken_over:
                    whole = Transcript(request, tokenizer, whole.events)
                if not whole.has_stopped():
                    whole.add(token_id)
            whole.close("length")
            assert whole.text == text


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (3, "\N{REPLACEMENT CHARACTER}")])
def test_what_is_left_at_the_end_counts_as_its_last_token_does(
    tokenizer: Tokenizer, min_tokens: int, text: str
) -> None:
    stop = "\N{REPLACEMENT CHARACTER}"
    transcript = Transcript(
        GenerationRequest((5,), 10, SamplingSettings(min_tokens=min_tokens), stop=(stop,)), tokenizer
    )
    for token_id in ids_of(tokenizer, "😀")[:3]:
        transcript.add(token_id)

    transcript.close("length")

    assert transcript.text == text


def test_an_end_flushes_what_was_cut_inside_a_character(tokenizer: Tokenizer) -> None:
    cut = ids_of(tokenizer, "😀")[:-1]
    transcript = Transcript(REQUEST, tokenizer)
    for token_id in cut:
        assert transcript.add(token_id).text == ""

    assert transcript.close("length").text == "\N{REPLACEMENT CHARACTER}"


def test_it_goes_on_with_the_same_texts_from_any_of_its_events(tokenizer: Tokenizer) -> None:
    whole = written(tokenizer, "Ça coûte 80 € à Öland 😀!")
    events: list[Event] = list(whole.events)

    for kept in range(len(events)):
        resumed = Transcript(REQUEST, tokenizer, events[:kept])
        for token_id in whole.ids[kept:]:
            resumed.add(token_id)
        assert resumed.events == events


def test_an_end_in_the_stream_is_adopted(tokenizer: Tokenizer) -> None:
    transcript = written(tokenizer, "un deux trois")
    theirs: list[Event] = [*transcript.events[:2], EndEvent("cancelled", 2, 2)]
    transcript.close("length")

    transcript.adopt(theirs)

    assert transcript.events == theirs


def test_an_end_of_ours_goes_behind_the_tokens_that_the_stream_holds(tokenizer: Tokenizer) -> None:
    theirs: list[Event] = list(written(tokenizer, "un deux trois quatre").events)
    transcript = Transcript(REQUEST, tokenizer, theirs[:2])
    transcript.close("cancelled")

    transcript.adopt(theirs)

    assert transcript.events == [*theirs, EndEvent("cancelled", len(theirs), 2)]


def test_a_stream_that_is_ahead_changes_nothing_while_the_job_runs(tokenizer: Tokenizer) -> None:
    theirs: list[Event] = list(written(tokenizer, "un deux trois quatre").events)
    transcript = Transcript(REQUEST, tokenizer, theirs[:2])

    transcript.adopt(theirs)

    assert transcript.events == theirs[:2]


def test_a_job_without_a_request_ends_without_text() -> None:
    transcript = Transcript(events=[TokenEvent(1, 5, "un")])

    assert transcript.close("error", error="why") == EndEvent("error", 1, 0, error="why")
    assert transcript.text == "un"


# Outages


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_from_the_first_to_the_longest_and_begin_again_with_each_outage() -> None:
    outage = Outage(60.0, first=0.1, cap=0.5)

    for _ in range(2):
        assert outage.failed()
        pauses = []
        for _ in range(4):
            pauses.append(outage.next_pause())
            assert not outage.failed()
        assert pauses == [0.1, 0.2, 0.4, 0.5]
        assert outage.succeeded() is not None

    assert outage.count == 2


def test_an_outage_is_too_long_after_its_limit_and_not_before() -> None:
    clock = Clock()
    outage = Outage(60.0, 0.1, 2.0, clock)
    assert not outage.is_too_long()
    outage.failed()

    clock.now += 60
    assert (outage.is_too_long(), outage.is_too_long(limit=2.0)) == (False, True)
    clock.now += 1
    assert outage.is_too_long()


def test_the_seconds_of_outages_that_are_over_add_up() -> None:
    clock = Clock()
    outage = Outage(60.0, 0.1, 2.0, clock)
    for seconds in (3.0, 4.0):
        outage.failed()
        clock.now += seconds
        assert outage.seconds == seconds
        assert outage.succeeded() == seconds
        assert outage.succeeded() is None

    assert (outage.seconds, outage.seconds_before, outage.is_on) == (0.0, 7.0, False)
