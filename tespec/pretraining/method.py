"""What a compared method is: the facts its table row states, and how it starts a backbone."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.core.settings import ARCHITECTURES
from tespec.weights.load import WeightsReport

if TYPE_CHECKING:
    from tespec.models import Backbone


class Method:
    """A way to start a backbone. Subclasses register in `METHODS` and override the facts, and `initialise` if need be.

    Attributes:
        title: name in the tables.
        version: raised by hand when the method's numbers change; results of another version are computed again.
        group: heading of the rows it stands under.
        backbone: network name in the tables.
        network: kind of network, one of those that profiles name the sizes of: "swin" or "resnet".
        architectures: with memory, without, or both.
        pretraining_data: data set of the pre-training, "-" for none.
        recipe: name of the recipe that makes its weights here, of `RECIPE` in its file; None if it has none.
        test_time_augmentation: whether the published number used it.
        citation: key or reference of the publication.
        licence: licence of the published weights, "" if there are none.
        weights: which published file holds them.
        summary: one or two sentences for `--describe`.
    """

    title: ClassVar[str] = ""
    version: ClassVar[int] = 1
    group: ClassVar[str] = "Methods added here"
    backbone: ClassVar[str] = "Swin-T/7"
    network: ClassVar[str] = "swin"
    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES
    pretraining_data: ClassVar[str] = "-"
    recipe: ClassVar[str | None] = None
    test_time_augmentation: ClassVar[bool] = False
    citation: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    weights: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def initialise(self, backbone: Backbone, checkpoint: Path | None, seed: int) -> WeightsReport:
        """Start `backbone` in place: from `checkpoint` where one is given, else as it was built.

        Args:
            backbone: freshly built with the run's seed.
            checkpoint: weights file, or None.
            seed: the run's seed, for methods that draw numbers.

        Raises:
            UserError: the file cannot be read or does not cover the whole backbone.
        """
        from tespec.weights.load import load_backbone

        if checkpoint is None:
            return WeightsReport("random initialisation", "", 0, len(backbone.state_dict()))
        return load_backbone(backbone, checkpoint)

    def require(self, name: str, arch: str) -> None:
        """Refuse an architecture that the method has not got.

        Raises:
            UserError: names those it has.
        """
        if arch not in self.architectures:
            what = f"{self.title} with {self.backbone} is {' or '.join(self.architectures)} alone"
            raise UserError(f"--method {name} --arch {arch}", what, f"give --arch {self.architectures[0]}")

    def facts(self) -> dict[str, Any]:
        """What a record and `--describe` say about the method."""
        return {
            "title": self.title,
            "group": self.group,
            "backbone": self.backbone,
            "pretraining_data": self.pretraining_data,
            "test_time_augmentation": self.test_time_augmentation,
            "citation": self.citation,
            "licence": self.licence,
            "weights": self.weights,
            "summary": self.summary,
        }


def find_method(name: str) -> Method:
    """The registered method of that name.

    Raises:
        UserError: there is none; the message names the nearest or all of them.
    """
    kind = METHODS.module_dict.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, list(METHODS.module_dict), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(sorted(METHODS.module_dict))}"
        raise UserError(f"--method {name}", "unknown method", remedy)
    method: Method = kind()
    if not method.title:
        raise UserError(f"--method {name}", "has no title for its table row", f"give {kind.__name__} a title")
    return method
