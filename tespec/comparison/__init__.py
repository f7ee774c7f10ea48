"""Records of results, published reference numbers, and the tables that put them side by side; never imports torch."""
