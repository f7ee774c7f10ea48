"""Scores and pictures of predictions."""
