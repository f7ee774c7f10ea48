"""The sample world's data sets in other layouts, and broken on purpose as real downloads are."""
