"""The containers as a user has them, from build to removal, with workers killed and Redis restarted in between.

``python -m containers`` runs it (``make compose-test``). It uses no inside of a worker or of an image: what it
does, ``docker`` and ``docker compose`` do, and what it checks, a client can see.
"""
