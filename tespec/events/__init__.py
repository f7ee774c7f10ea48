"""Event streams and what is computed from them; nothing here imports torch before it is needed."""

from tespec.events.histogram import event_histogram
from tespec.events.opening import load_events, open_events
from tespec.events.stream import ArrayStream, Events, EventStream
from tespec.events.windows import window_histograms

__all__ = ["ArrayStream", "EventStream", "Events", "event_histogram", "load_events", "open_events", "window_histograms"]
