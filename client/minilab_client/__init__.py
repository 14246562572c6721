"""The command line of MiniLab Gen: one module for each command, and what they share. It must not know torch."""
