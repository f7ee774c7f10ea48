"""Training: the loop, the optimizer, checkpoints, loading, launching, devices."""
