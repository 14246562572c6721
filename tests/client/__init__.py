"""The tests of ``minilab-client``."""
