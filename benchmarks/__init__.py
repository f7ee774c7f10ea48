"""Command lines of the harness."""
