"""What becomes of a claimed job: a sequence to compute, or an end at once."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from minilab_gen.errors import RequestError
from minilab_gen.request import ModelLimits
from minilab_gen.text.tokenizer import Tokenizer
from minilab_worker.job_run import JobRun
from minilab_worker.job_store import FINGERPRINT_WAIT, Claim

_log = logging.getLogger(__name__)

MOST_EXPIRED_LEASES: Final = 3
"""Workers whose leases may expire over one job before it counts as their cause and is failed."""


def admit(claim: Claim, limits: ModelLimits, tokenizer: Tokenizer) -> JobRun:
    """The run of a claimed job; it has ended already if the job cannot or need not run."""
    refusal = _refusal(claim, limits)
    is_refused = True if refusal is not None else None
    try:
        run = JobRun(replace(claim, request=None) if refusal else claim, tokenizer)
    except Exception as error:  # noqa: BLE001 - a job that we fail to understand must not end the worker
        _log.exception("%s: the job cannot be read", claim.job.job_id, extra={"job_id": claim.job.job_id})
        refusal = f"the job cannot be read: {type(error).__name__}"
        run = JobRun(replace(claim, request=None), tokenizer)
    if run.end is not None:
        return run
    if refusal is not None:
        run.close("error", error=refusal, refused=is_refused)
    elif run.transcript.has_stopped() and claim.begun_by is None:
        run.close("stop")  # an earlier worker published its last token and not its end
    elif claim.expired_leases >= MOST_EXPIRED_LEASES:
        run.close("error", error=f"{claim.expired_leases} workers lost their lease while they ran this job")
    elif claim.is_cancelled:
        run.close("cancelled")
    elif claim.begun_by is not None:
        why = f"no worker of the model {claim.begun_by}, which began it, came within {FINGERPRINT_WAIT:.0f} s"
        run.close("error", error=why)
    elif not claim.stream and claim.has_expired:
        run.close("timeout", phase="waiting")
    return run


def _refusal(claim: Claim, limits: ModelLimits) -> str | None:
    """Why a job holds no request that this model can run."""
    if claim.request is None:
        return claim.refusal or "the job holds no request"
    try:
        claim.request.check_fits(limits)
    except RequestError as error:
        return str(error)
    return None
