"""Inspect and convert weights: `tespec weights` from a checkout."""

from installed import call

if __name__ == "__main__":
    call("weights")
