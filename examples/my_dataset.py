"""A custom data set: a folder per drive with events, masks and their times; task in drives.yaml."""

from pathlib import Path

from tespec.core.config import add_file
from tespec.core.errors import UserError
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.labels import MaskFiles, mask_names, read_label_times
from tespec.datasets.sources import EventSource
from tespec.events.histogram import Region
from tespec.registry import DATASETS

add_file("tasks", Path(__file__).with_name("drives.yaml"))


@DATASETS.register_module()
class Drives(LabelledDataset):
    """Drives: events as `.dat` files, masks of 6 classes.

    Layout:
        drives/train/alley/events.dat          drives/train/bridge/...
        drives/train/alley/times.txt           time of each mask in us, one per line
        drives/train/alley/masks/000000.png    one byte per pixel: its class, 255 for none
        drives/test/canal/...
    """

    title = "Drives"
    splits = {"train": ["alley", "bridge"], "test": ["canal"]}
    layout = "a folder for each drive, below train and test"

    def find(self, split, name):
        """Files of one drive."""
        folder = self.root / split / name
        source = EventSource(self.locate([folder / "events.dat"], split), self.user_sensor)
        return RecordingFiles(name, split, source, (folder / "masks", folder / "times.txt"))

    def open(self, files):
        """Open one drive with its masks; the first mask's events begin at the first event."""
        facts = files.source.facts  # sensor size, first and last time, number of events
        masks, stamps = files.label_files
        names = mask_names(masks)
        times = read_label_times(stamps)  # (K,) us
        if len(times) != len(names):
            raise UserError(
                stamps, f"contains {len(times)} times for {len(names)} masks", "copy both again"
            )
        labels = MaskFiles(masks, tuple(names.values()))
        region = Region(facts.height, facts.width)
        begin = min(facts.t_first, int(times[0]) - 1)
        return self.labelled_recording(files, region, labels, times, begin)
