"""Weights files: written as safetensors, read safely, loaded completely or not at all."""
