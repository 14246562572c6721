"""Training of the base model."""
