"""The parts of ``minilab-client watch``: what is seen, how it is gathered, how it is drawn."""
