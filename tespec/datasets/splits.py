"""Splits of a data set by the names of its folders."""

import os
import re
from itertools import pairwise
from pathlib import Path

from tespec.datasets.base import HELD_OUT, SPLITS, TEST, TRAIN, UNKNOWN

NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev"), HELD_OUT),
    **dict.fromkeys(("test", "testing"), TEST),
}
UNDERSTOOD = tuple(NAMES)
# Archives of DSEC, unpacked side by side (https://dsec.ifi.uzh.ch/dsec-datasets/download/).
DSEC_PARTS = ("events", "images", "semantic_segmentation", "disparity", "optical_flow")
NAMES |= {f"{split}_{part}": split for split in (TRAIN, TEST) for part in DSEC_PARTS}
# Words that may name a split as part of a name: "test" in "test_2" and in "testA", but not in
# "testimony".
WORDS = re.compile(
    r"(train(ing)?|trainval|val(s|id|idation|idate)?|dev|test(s|ing)?|tst|eval(uation)?)(set|data)?"
    r"|holdout|heldout|unseen"
)
PARTS = re.compile("[A-Z]?[a-z]+|[A-Z]+")  # words of a name, also in one such as "myTestData"


def split_named(name: str) -> str | None:
    """Return the split that a folder is named after, in any case.

    Returns:
        "train", "val" or "test"; `UNKNOWN` if the name contains the word of a split and more, as
        "Test_2" and "testA" do; None for any other name.
    """
    words = [word.casefold() for word in PARTS.findall(name)]
    pairs = map("".join, pairwise(words))  # such as "held_out"
    is_doubtful = any(WORDS.fullmatch(word) for word in (*words, *pairs))
    return NAMES.get(name.casefold()) or (UNKNOWN if is_doubtful else None)


def split_folders(folder: Path) -> list[tuple[str, Path]]:
    """List the split and path of each subfolder that is named after a split.

    An unreadable folder has none.
    """
    try:
        with os.scandir(folder) as scan:
            folders = [
                (str(split_named(entry.name)), Path(entry.path))
                for entry in scan
                if split_named(entry.name) in SPLITS and entry.is_dir()
            ]
    except OSError:
        return []
    return sorted(folders)


def search_folders(root: Path) -> list[Path]:
    """Folders that may hold recordings: `root`, the folders in it, and the split folders in these.

    DSEC's labels are in train_semantic_segmentation/train.
    """
    outer = sorted(path for path in root.glob("[!.]*") if path.is_dir())
    inner = [path for folder in outer for _, path in split_folders(folder)]
    return [root, *outer, *inner]
