"""The names of jobs, models and queues: checked before they become keys, and each queue tells whose it is."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from support.one_job import everything

from minilab_gen.errors import RequestError
from minilab_gen.protocol import endings, jobs, keys
from minilab_gen.protocol.endings import settle
from minilab_gen.protocol.jobs import fetch
from minilab_gen.protocol.results import result
from minilab_gen.protocol.submission import Submission


@pytest.mark.parametrize("job_id", ["a:b", "a b", "ü", "", "x\n", "x" * 129, "../x", 5, b"x"])
def test_an_id_is_checked_before_it_becomes_a_key(connection: redis.Redis, job_id: Any) -> None:
    for use in (jobs.view, endings.cancel, settle, fetch, result):
        with pytest.raises(RequestError, match="a job id must be 1 to 128 letters, digits, _ or -"):
            use(connection, job_id)
    with pytest.raises(RequestError, match="a job id must be 1 to 128 letters, digits, _ or -"):
        Submission(job_id=job_id)

    assert everything(connection) == {}


@pytest.mark.parametrize("model", ["a/b", "a b", "", "x" * 65, None, "*", ".", "..", ".a", "a.", "a\n", "a.é"])
def test_a_model_name_is_checked_before_it_becomes_a_key(model: Any) -> None:
    with pytest.raises(RequestError, match="a model name must be 1 to 64 letters, digits, _, - or, but at its ends"):
        Submission(model=model)


@pytest.mark.parametrize("model", ["a.high", "a.low", "a.normal", "a.b.high"])
def test_a_model_name_that_would_be_the_queue_of_a_priority_is_refused(model: str) -> None:
    with pytest.raises(RequestError, match=r"must not end in \.high, \.normal or \.low, since"):
        Submission(model=model)


@pytest.mark.parametrize("model", ["base", "X3.2", "Llama-3.2-1B.v2", "a..b", "high", "low", "normal", "a.High"])
def test_a_queue_tells_its_model_and_its_priority(model: str) -> None:
    assert keys.check_model_name(model) == model
    parts = [keys.queue_parts(name) for name in keys.queue_names(model)]

    assert parts == [(model, priority) for priority in keys.PRIORITIES]


@pytest.mark.parametrize("queue", ["default", "minilab", "minilab.", "minilab.high.low", "minilab..high", "other.base"])
def test_a_queue_of_others_is_none_of_a_model(queue: str) -> None:
    parts = keys.queue_parts(queue)

    assert parts is None or keys.queue_name(*parts) == queue
    assert parts in (None, ("high", "low"))
