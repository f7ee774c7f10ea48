"""Event streams and event histograms; this package imports torch only when it is needed."""

from tespec.events.histogram import event_histogram, window_histograms
from tespec.events.opening import open_events
from tespec.events.readers import Events
from tespec.events.store import PackedEvents

__all__ = ["Events", "PackedEvents", "event_histogram", "open_events", "window_histograms"]
