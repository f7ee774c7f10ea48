"""The compared methods, one module each."""
