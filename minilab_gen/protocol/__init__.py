"""What stands in Redis: keys, streams, jobs, cards, and how they are written and read. It must not know torch."""
