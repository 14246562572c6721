"""A worker is killed in the middle of an object: another one goes on, and the object is what was asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from chaos.fleet import FAST_KERNELS
from chaos.server import BINARY
from support.own_service import LONG, OwnService
from support.random_forms import is_valid, schema_form

from minilab_gen.protocol.events import EndEvent
from minilab_gen.protocol.results import result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="needs redis-server or valkey-server on the PATH"),
]

SCHEMA = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string", "minLength": 4, "maxLength": 8},
            "minItems": 4,
            "maxItems": 5,
        },
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["names", "age"],
    "additionalProperties": False,
}


def test_an_object_goes_on_after_its_worker_is_killed_and_is_valid(own_service: OwnService) -> None:
    request = replace(LONG, max_new_tokens=120, form=schema_form(SCHEMA))
    worker = own_service.fleet.start_and_wait()
    job_id = own_service.submit(request)
    own_service.wait_for_token(job_id, 12)

    worker.kill()
    seen = own_service.tokens(job_id)
    own_service.fleet.start(kernels=FAST_KERNELS)

    own_service.wait_for_status(job_id, "finished")
    own_service.assert_answered(job_id, request)
    found = result(own_service.connection, job_id)
    assert found is not None
    assert 12 <= seen < len(found.ids)
    end = own_service.stream(job_id)[-1]
    assert isinstance(end, EndEvent)
    assert (end.reason, end.complete) == ("stop", True)
    assert is_valid(found.text, SCHEMA), json.loads(found.text)
