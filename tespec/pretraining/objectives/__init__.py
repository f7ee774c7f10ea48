"""Pre-training objectives, found by name in the registry of models."""

from tespec.pretraining.objectives.masked_reconstruction import MaskedReconstruction, Reconstruction

__all__ = ["MaskedReconstruction", "Reconstruction"]
