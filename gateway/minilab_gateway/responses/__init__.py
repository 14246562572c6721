"""``/v1/responses``: each is a job, and nothing is kept beside it."""
