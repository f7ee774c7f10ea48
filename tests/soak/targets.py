"""All that is read from strangers, by name."""

from __future__ import annotations

from target import Target
from targets_archives import ARCHIVES
from targets_hdf5 import HDF5
from targets_pictures import PICTURES
from targets_recordings import RECORDINGS
from targets_settings import SETTINGS
from targets_tables import TABLES
from targets_weights import WEIGHTS

TARGETS: dict[str, Target] = {**RECORDINGS, **HDF5, **TABLES, **SETTINGS, **WEIGHTS, **ARCHIVES, **PICTURES}
