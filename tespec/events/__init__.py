"""Event streams and what is computed from them."""

from tespec.events.histogram import event_histogram
from tespec.events.opening import open_events
from tespec.events.stream import ArrayStream, Events, EventStream

__all__ = ["ArrayStream", "EventStream", "Events", "event_histogram", "open_events"]
