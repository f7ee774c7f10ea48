"""Pre-training objectives: networks that turn a batch into losses around the backbone that is kept."""

from tespec.pretraining.objectives.masked_reconstruction import MaskedReconstruction, Reconstruction

__all__ = ["MaskedReconstruction", "Reconstruction"]
