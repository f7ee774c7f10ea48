"""All results as one HTML page."""
