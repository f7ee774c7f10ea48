"""Settings of the property tests of this folder."""

from hypothesis import settings

settings.register_profile("events", deadline=None)  # the first call of a numba kernel compiles it
settings.load_profile("events")
