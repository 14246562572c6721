"""OpenAI's API, without HTTP: what a body asks for, and answers as its objects. Batches and the gateway share it."""
