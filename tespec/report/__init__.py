"""One HTML page of all results that opens without a network; never imports torch."""
