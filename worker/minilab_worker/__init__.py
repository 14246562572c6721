"""The worker: the only package where engine and protocol meet."""
