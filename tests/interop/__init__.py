"""Programs of others: tools for RQ and Redis that look at a running service, and programs that speak OpenAI's API.

``python -m interop`` runs it (``make interop``), with what the documents show. It must not look at
anything but what these programs show, and what becomes of their jobs.
"""
