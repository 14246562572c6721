"""Files of requests, answered line by line, and again only where an answer is missing. It must not know torch."""
