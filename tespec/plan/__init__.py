"""Sets of runs: what is missing of them, in which order, and on what it is computed."""
