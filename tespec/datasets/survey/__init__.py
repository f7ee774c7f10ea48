"""Looks through a dataset: what its recordings and labels hold, and what is wrong with them."""
