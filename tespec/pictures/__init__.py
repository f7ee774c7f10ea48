"""Pictures of events, labels and curves."""
