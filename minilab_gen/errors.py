"""Every error that this project raises on purpose.

::

    MiniLabError
    ├── RequestError (also a ValueError)    a request that can never run: bad settings, prompt or ids
    ├── CheckpointError                     a checkpoint folder that cannot be served
    ├── KernelError                         compiled kernels that are missing or refuse their input
    ├── CardError                           a model card that cannot be read
    ├── UnknownModelError                   no model card of that name
    ├── UnknownJobError                     no such job, or its data has expired
    ├── DuplicateJobError                   the job id is taken
    ├── QueueFullError                      the queue holds as many jobs as it may
    ├── NotEndedError                       the job has not ended in the time that was given to it
    ├── JobCancelledError                   the job was cancelled (raised inside the task only)
    ├── JobTimeoutError                     the job waited past its ttl (raised inside the task only)
    ├── StreamError                         a token stream with a gap or an entry that is not ours
    └── RedisUnavailableError               no server serves us, or none can be started
"""

from __future__ import annotations


class MiniLabError(Exception):
    """The root of all errors of this project."""


class RequestError(MiniLabError, ValueError):
    """A request that breaks a rule; the message gives the rule and what came."""


class CheckpointError(MiniLabError):
    """A checkpoint folder that is incomplete, damaged or of a kind that is not served."""


class CardError(MiniLabError):
    """A model card that is damaged or of another version."""


class UnknownModelError(MiniLabError):
    """A model that no worker has announced."""


class UnknownJobError(MiniLabError):
    """A job that was never submitted here or has expired."""


class DuplicateJobError(MiniLabError):
    """A job id that is already in use."""


class QueueFullError(MiniLabError):
    """A queue that holds as many waiting jobs as it may."""


class NotEndedError(MiniLabError):
    """A job that has not ended in the time for which its reader wanted to wait; it goes on."""


class JobCancelledError(MiniLabError):
    """A job that was told to stop while it ran."""


class JobTimeoutError(MiniLabError):
    """A job that waited for longer than it may."""


class StreamError(MiniLabError):
    """A token stream that does not read 1, 2, 3, ... up to its terminal entry."""


class RedisUnavailableError(MiniLabError):
    """No Redis server answers at the address in use, or it does not do what it is asked."""
