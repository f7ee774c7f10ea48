"""Splits of a data set by the names of its folders."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tespec.core.errors import UserError
from tespec.datasets.base import HELD_OUT, SPLITS, TEST, TRAIN, UNKNOWN

NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev"), HELD_OUT),
    **dict.fromkeys(("test", "testing"), TEST),
}
UNDERSTOOD = tuple(NAMES)
# Folders of DSEC's archives, unpacked side by side (https://dsec.ifi.uzh.ch/dsec-datasets/download/).
DSEC_PARTS = ("events", "images", "semantic_segmentation", "disparity", "optical_flow")
NAMES |= {f"{split}_{part}": split for split in (TRAIN, TEST) for part in DSEC_PARTS}
# A word of a name in lower case, such as "test" in "test_2"; "testimony" and "valley" are other words.
DOUBTFUL = re.compile(r"(?<![a-z])(train(ing)?|val(id(ation)?)?|trainval|dev|test(ing)?|eval(uation)?)(set)?(?![a-z])")


def split_named(name: str) -> str | None:
    """Return the split that a folder is named after, in any case.

    Returns:
        "train", "val" or "test"; `UNKNOWN` if the name contains the word of a split and more, as "Test_2" does; None
        for any other name.
    """
    lower = name.casefold()
    return NAMES.get(lower) or (UNKNOWN if DOUBTFUL.search(lower) else None)


def split_folders(folder: Path) -> list[tuple[str, Path]]:
    """List the split and the path of each subfolder that is named after one; an unreadable folder has none."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(Path(entry.path) for entry in entries if split_named(entry.name) and entry.is_dir())
    except OSError:
        return []
    return [(str(split), path) for path in folders if (split := split_named(path.name)) in SPLITS]


def search_folders(root: Path) -> list[Path]:
    """Folders that may hold recordings: `root`, its split folders, and split folders in these.

    The latter are in DSEC's archives of labels: train_semantic_segmentation/train.
    """
    outer = [path for _, path in split_folders(root)]
    return [root, *outer, *(path for folder in outer for _, path in split_folders(folder))]


def only_one(paths: Sequence[Path]) -> Path:
    """Return the first of one or more paths; refuse two that are not links to the same file or folder."""
    if (other := next((path for path in paths if path.resolve() != paths[0].resolve()), None)) is not None:
        raise UserError(paths[0], f"also exists as {other}", "keep one of them")
    return paths[0]
