"""Answers with a form are the same tokens alone, in any batch, resumed anywhere; and they have their form."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from minilab_worker.serving import ServedModel
from support.random_forms import form_of, has_form, random_form

from minilab_gen.constraints.compiler import FormCompiler
from minilab_gen.engine import Ended, Engine, Sequence
from minilab_gen.errors import RequestError
from minilab_gen.generate import generate
from minilab_gen.request import GenerationRequest, SamplingSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiler(served: ServedModel) -> FormCompiler:
    return FormCompiler(served.tokenizer, served.model.config.vocab_size)


def random_request(rng: random.Random) -> GenerationRequest:
    settings = SamplingSettings(
        temperature=rng.choice([0, 0.7, 1.5]),
        seed=rng.randrange(1000),
        top_p=rng.choice([None, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.2]),
    )
    prompt = tuple(rng.randrange(3, 2000) for _ in range(rng.randint(1, 20)))
    stop_ids = rng.choice([(), (0,), (0, 2)])
    return GenerationRequest(prompt, rng.randint(1, 43), settings, stop_ids, form=random_form(rng))


def answer_alone(served: ServedModel, compiler: FormCompiler, request: GenerationRequest) -> list[int]:
    assert request.form is not None
    constraint = compiler.start(request.form)
    steps = generate(
        served.model,
        request.prompt,
        request.max_new_tokens,
        request.settings,
        request.stop_ids,
        constraint=constraint,
    )
    return [step.token_id for step in steps]


def sequence(compiler: FormCompiler, name: str, request: GenerationRequest, answered: list[int]) -> Sequence:
    assert request.form is not None
    constraint = compiler.start(request.form, answered, request.stop_ids)
    return Sequence(name, request, answered, constraint=constraint)


def run(served: ServedModel, max_batch: int, sequences: Iterable[Sequence], **options: int) -> dict[str, Ended]:
    engine = Engine(served.model, max_batch, threads=1, **options)  # type: ignore[arg-type]
    ended: dict[str, Ended] = {}
    for each in sequences:
        engine.add(each)
    while engine.has_work:
        ended |= {each.sequence.name: each for each in engine.step() if isinstance(each, Ended)}
    engine.check_idle()
    return ended


def test_an_answer_with_a_form_is_the_same_in_any_batch_and_resumed_anywhere(
    served: ServedModel, compiler: FormCompiler
) -> None:
    rng = random.Random(7)
    requests = [random_request(rng) for _ in range(40)]
    answers = [answer_alone(served, compiler, request) for request in requests]

    for max_batch in (1, 7):
        whole = [sequence(compiler, str(n), request, []) for n, request in enumerate(requests)]
        run(served, max_batch, whole)
        assert [each.ids[len(each.request.prompt) :] for each in whole] == answers
    begun = [
        sequence(compiler, str(n), request, answer[: rng.randint(0, len(answer))])
        for n, (request, answer) in enumerate(zip(requests, answers, strict=True))
    ]
    run(served, 7, begun, kv_tokens=130)  # which preempts some of them
    assert [each.ids[len(each.request.prompt) :] for each in begun] == answers


def test_what_ended_by_itself_has_its_form_and_what_was_cut_says_so(
    served: ServedModel, compiler: FormCompiler
) -> None:
    rng = random.Random(11)
    requests = [random_request(rng) for _ in range(60)]
    requests = [replace(request, max_new_tokens=50) for request in requests]

    ended = run(served, 7, [sequence(compiler, str(n), request, []) for n, request in enumerate(requests)])

    stopped = 0
    for each in ended.values():
        sequence_, form = each.sequence, each.sequence.request.form
        assert form is not None
        assert each.error is None
        ids = [token for token in sequence_.ids[len(sequence_.request.prompt) :] if token != each.stop_id]
        text = served.tokenizer.decode(ids)
        stopped += each.reason == "stop"
        assert each.is_complete in (True, False)
        if each.reason == "stop":
            assert each.is_complete
        if each.is_complete:
            assert has_form(text, form), (text, form)
    assert stopped > len(requests) // 3


def test_an_answer_after_which_nothing_may_come_ends_without_a_stop_token(
    served: ServedModel, compiler: FormCompiler
) -> None:
    for stop_ids in ((), (0,)):
        request = GenerationRequest((5, 6), 40, stop_ids=stop_ids, form=form_of(choice=["oui"]))
        ended = run(served, 2, [sequence(compiler, "x", request, [])])["x"]
        assert (ended.reason, ended.stop_id, ended.is_complete) == ("stop", None, True)
        assert served.tokenizer.decode(ended.sequence.ids[2:]) == "oui"


def test_an_answer_that_is_whole_with_its_last_token_is_not_cut(served: ServedModel, compiler: FormCompiler) -> None:
    form = form_of(choice=["oui"])
    whole = run(served, 1, [sequence(compiler, "x", GenerationRequest((5, 6), 40, form=form), [])])["x"]
    request = GenerationRequest((5, 6), whole.sequence.tokens, form=form)
    ended = run(served, 1, [sequence(compiler, "x", request, [])])["x"]
    assert (ended.reason, ended.is_complete, ended.sequence.ids) == ("stop", True, whole.sequence.ids)


def test_an_engine_takes_no_sequence_whose_form_it_could_not_keep(served: ServedModel) -> None:
    request = GenerationRequest((5, 6), 40, form=form_of(choice=["oui"]))
    with pytest.raises(RequestError, match="needs a constraint"):
        Engine(served.model, 1, threads=1).add(Sequence("x", request))


def test_a_stop_token_may_come_only_where_the_answer_is_whole(served: ServedModel, compiler: FormCompiler) -> None:
    settings = SamplingSettings(logit_bias={0: 100.0})  # it wants to stop at once
    request = GenerationRequest((5, 6), 40, settings, (0,), form=form_of(regex="[a-z]{3}[a-z]*"))
    ended = run(served, 2, [sequence(compiler, "x", request, [])])["x"]
    assert (ended.reason, ended.stop_id, ended.is_complete) == ("stop", 0, True)
    assert len(served.tokenizer.decode(ended.sequence.ids[2:-1])) >= 3


def test_settings_and_a_form_that_leave_no_token_end_that_answer_alone_with_an_error(
    served: ServedModel, compiler: FormCompiler
) -> None:
    form = form_of(choice=["oui"])
    hopeless = GenerationRequest((5, 6), 40, SamplingSettings(allowed_token_ids=(300,)), form=form)
    neighbour = GenerationRequest((5, 6), 40, form=form)
    ended = run(served, 2, [sequence(compiler, "x", hopeless, []), sequence(compiler, "y", neighbour, [])])
    assert (ended["x"].reason, ended["y"].reason) == ("error", "stop")
    assert "leave no token" in str(ended["x"].error)
