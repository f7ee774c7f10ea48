"""Self-supervised pre-training: what is hidden, what is predicted, and from what."""
