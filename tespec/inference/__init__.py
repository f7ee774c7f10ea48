"""Trained networks at work: loaded from a file, played over a recording, drawn."""
