"""Files of requests: their lines, the jobs of these and what is answered. ``batch`` and the gateway share it."""
