"""Tests of the HTTP interface, and what they share."""
