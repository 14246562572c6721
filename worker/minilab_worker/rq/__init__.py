"""RQ as the worker's job store; the only package of the worker that knows RQ."""

from minilab_worker.rq.store import RqJobStore

__all__ = ["RqJobStore"]
