"""A service under load while all around it breaks: workers are killed or paused, Redis restarts, answers get lost.

``python -m chaos --seeds 20`` runs it (``make chaos``). It uses no inside of a worker: what it does to
one, an operating system or a network does, and what it checks, a client or an RQ dashboard can see.
"""
