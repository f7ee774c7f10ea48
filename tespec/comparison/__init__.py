"""Records of results, published numbers, and tables that compare them; never imports torch."""
