"""What every part of the harness may use."""
