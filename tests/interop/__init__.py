"""The tools that others made for RQ and Redis, looking at a running service, with the commands that the documents give.

``python -m interop`` runs it (``make interop``). It must not look at anything but what these tools show.
"""
