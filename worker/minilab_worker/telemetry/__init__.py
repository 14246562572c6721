"""What a worker tells about itself: log, counters, reports, metrics, health."""
