"""Training: the loop, its checkpoints and schedules, and the two runs made of them."""
