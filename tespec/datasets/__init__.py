"""Recordings with and without labels, and batches of them.

Importing this package registers the data sets.
"""

from tespec.datasets.ddd17 import Ddd17
from tespec.datasets.dsec import Dsec
from tespec.datasets.mvsec import Mvsec
from tespec.datasets.prophesee import Gen1, OneMpx

__all__ = ["Ddd17", "Dsec", "Gen1", "Mvsec", "OneMpx"]
