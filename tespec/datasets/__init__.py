"""Recordings with and without labels, and the batches that are made of them."""
