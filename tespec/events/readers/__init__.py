"""One file per on-disk format."""
