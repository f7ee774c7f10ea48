"""The registries: how methods, tasks, networks and data sets are added to the harness."""

from tespec.core.registry import BACKBONES, DATASETS, METHODS, MODELS, TASKS

__all__ = ["BACKBONES", "DATASETS", "METHODS", "MODELS", "TASKS"]
