"""A small synthetic driving world in the layouts of the real data sets, for use without them."""

from tespec.sample.make import make_world, world_folder

__all__ = ["make_world", "world_folder"]
