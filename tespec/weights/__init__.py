"""Weights files: written as safetensors, read safely, loaded whole or not at all."""
