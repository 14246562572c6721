"""Text to ids and ids to text; conversations. Needs neither torch nor Redis."""
