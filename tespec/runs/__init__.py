"""One run, from its settings to its record."""
