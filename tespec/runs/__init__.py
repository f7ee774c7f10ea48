"""One run, from settings to a record."""
