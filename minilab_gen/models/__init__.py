"""Models: what a folder says, and the decoder in plain torch."""
