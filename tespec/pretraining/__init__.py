"""Self-supervised pre-training: data, methods, and the parts that methods share."""
