"""Settings, files, errors and other utilities shared by the complete harness."""
