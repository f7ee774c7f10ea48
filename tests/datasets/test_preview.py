"""Which moments a preview shows."""

from pathlib import Path

from tespec.datasets.folder import ALL, EventFolder
from tespec.datasets.preview import choose

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"


def test_no_moment_is_shown_twice_while_there_are_others():
    recordings = list(EventFolder(REAL).recordings(ALL))
    for count in (2, 3, 6):
        places = [place for _, place in choose(recordings, count, "edges")]
        assert len(set(places)) == count
    windows = len(recordings[0])
    assert len(choose(recordings, windows + 2, "edges")) == windows + 2
