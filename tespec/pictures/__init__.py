"""Pictures of events, labels, predictions and reconstructions."""
