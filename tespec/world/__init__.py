"""A small synthetic driving world that stands in where no dataset is at hand."""

from __future__ import annotations

from tespec.world.make import make_world, world_folder

__all__ = ["make_world", "world_folder"]
