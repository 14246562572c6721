"""What is written about a line: the answer to its request, or why it has none, in OpenAI's form."""

from __future__ import annotations

from typing import Any, Final, Literal

from minilab_gateway.batches.batch_store import Written
from minilab_gateway.errors import ApiError
from minilab_gen.asked_model import AskedModel
from minilab_gen.batch.choices import answers_of, failed_of
from minilab_gen.batch.json_lines import line_bytes
from minilab_gen.batch.openai_form import answer
from minilab_gen.batch.pending_jobs import EndedLine, Failure

Ending = Literal["batch_cancelled", "batch_expired"]
"""Why a batch ends before all of its lines have an answer."""

_WHY: Final[dict[Ending, str]] = {
    "batch_cancelled": "the batch was cancelled before this line had an answer",
    "batch_expired": "the batch's window was over before this line had an answer",
}

_CODES: Final = {"timeout": "job_timeout", "cancelled": "job_cancelled", "lost": "job_lost"}


def of_jobs(together: list[EndedLine], model: AskedModel, ending: Ending | None) -> Written:
    """What has come of the jobs of a line."""
    failed = failed_of(together)
    first = together[0].line
    if failed is None:
        return Written(first.number, True, line_bytes(answer(answers_of(together), model)))
    ended, failure = failed
    if ending is not None and failure.code == "cancelled":
        return left_over(first.number, first.custom_id, first.digest, ending)
    content = _with_response(first.custom_id, first.digest, ended.job_id, _error_of(failure))
    return Written(first.number, False, line_bytes(content))


def refused(number: int, custom_id: str, digest: str, error: ApiError) -> Written:
    """A line whose body asks for what is not done."""
    content = _with_response(custom_id, digest, f"batch-{digest}", error)
    return Written(number, False, line_bytes(content))


def left_over(number: int, custom_id: str, digest: str, ending: Ending) -> Written:
    """A line that has no answer as the batch has ended."""
    content = {
        "id": f"batch_req_{digest}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": ending, "message": _WHY[ending]},
    }
    return Written(number, False, line_bytes(content))


def _with_response(custom_id: str, digest: str, request_id: str, error: ApiError) -> dict[str, Any]:
    return {
        "id": f"batch_req_{digest}",
        "custom_id": custom_id,
        "response": {"status_code": error.status, "request_id": request_id, "body": error.body()},
        "error": None,
    }


def _error_of(failure: Failure) -> ApiError:
    return ApiError(500, failure.reason, code=_CODES.get(failure.code, "job_failed"))
