"""The worker: the only place where engine and protocol meet."""
