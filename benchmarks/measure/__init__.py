"""What the harness costs: each stage beside a plain re-implementation of how peers do it, and beside the machine."""
