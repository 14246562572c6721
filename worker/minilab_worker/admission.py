"""What becomes of a claimed job: a sequence to compute, or an end at once. It must not know Redis or the engine."""

from __future__ import annotations

import logging

from minilab_gen.errors import RequestError
from minilab_gen.protocol.endings import has_expired
from minilab_gen.protocol.jobs import request_of
from minilab_gen.request import ModelLimits
from minilab_gen.tokenizer import Tokenizer
from minilab_worker.claims import EQUAL_PATIENCE, Claim
from minilab_worker.ledger import check_extras
from minilab_worker.run import Run

MOST_DEATHS = 3
"""Workers that may die over one job before it counts as their cause and is failed."""

_log = logging.getLogger(__name__)


def admit(claim: Claim, limits: ModelLimits, tokenizer: Tokenizer) -> Run:
    """The run of a claimed job; it has ended already if the job cannot or need not run."""
    try:
        check_extras(claim.job)
        request = request_of(claim.job)
        request.check_fits(limits)
        run = Run(claim, request, tokenizer)
    except RequestError as error:
        run = Run(claim, None, tokenizer)
        run.end_at_once("error", error=str(error))
        return run
    except Exception as error:  # noqa: BLE001 - a job that we fail to understand must not end the worker
        _log.exception("%s: the job cannot be read", claim.job.id, extra={"job_id": claim.job.id})
        run = Run(claim, None, tokenizer)
        run.end_at_once("error", error=f"the job cannot be read: {type(error).__name__}")
        return run
    if claim.deaths >= MOST_DEATHS:
        run.end_at_once("error", error=f"{claim.deaths} workers died while they ran this job")
    elif claim.cancelled:
        run.end_at_once("cancelled")
    elif claim.begun_by is not None:
        why = f"no worker of the model {claim.begun_by}, which began it, came within {EQUAL_PATIENCE:.0f} s"
        run.end_at_once("error", error=why)
    elif not claim.stream and has_expired(claim.job, claim.moment):
        run.end_at_once("timeout", phase="waiting")
    return run
