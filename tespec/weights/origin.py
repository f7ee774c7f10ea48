"""What weights were pre-trained on, by what their file says."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tespec.core.errors import UserError
from tespec.weights.convert import SOURCES, recognised
from tespec.weights.files import read_recipe, read_tensors

SAMPLE = "sample"


class Origin(NamedTuple):
    """Data of a pre-training.

    Attributes:
        data: name of the data set; empty for no pre-training, and where it is not known.
        sample: whether it is the sample world's twin of that data set.
    """

    data: str = ""
    sample: bool = False


def origin_of(path: Path) -> Origin:
    """What the weights in a file were pre-trained on.

    Weights of this harness say it in their header, those converted from another source name that source, and a file of
    a known source has what was published of it. Any other file says nothing of its data.
    """
    try:
        recipe = read_recipe(path)
        if recipe.get("data") == SAMPLE:
            return Origin(str(recipe.get("dataset", "")), sample=True)
        if recipe.get("data"):
            return Origin(str(recipe["data"]))
        if recipe:
            source = recipe.get("source")
            written = source.get("format") if isinstance(source, dict) else None
            return Origin(next((each.data for each in SOURCES if each.name == written), ""))
        found = recognised(read_tensors(path)[0])[1]
    except UserError:
        # A method may read files of its own; one that nobody can read is refused where it is loaded.
        return Origin()
    return Origin(found.data if found else "")
