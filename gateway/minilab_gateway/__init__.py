"""The HTTP interface: OpenAI's routes over the queue and the token streams. It keeps nothing of its own."""
