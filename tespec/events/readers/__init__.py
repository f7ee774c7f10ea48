"""One file per on-disk format; `READS` of a file gives the opening function of each suffix it reads.

Opening functions take a path and the sensor's height and width in px, where the file does not name them. They give a
`tespec.events.stream.Reader`, and raise `UserError` for files that are empty, truncated, damaged or of another kind,
and where nobody says the sensor's size or file and user contradict each other.
"""
