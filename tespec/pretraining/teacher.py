"""Frozen image networks as teachers of event backbones, from timm or pre-trained here."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import tespec.core.compat  # noqa: F401  # before timm

import timm.models
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torchvision.transforms.functional import InterpolationMode, center_crop, resize

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Pretraining, Size
from tespec.datasets.images import normalise
from tespec.models.backbone import Backbone, build_backbone
from tespec.models.layers import pad_to, padded_size
from tespec.pretraining.contrast import pooled
from tespec.pretraining.method import PairMethod, PretrainData
from tespec.weights.load import load_backbone

TOKEN_SIZE = 16  # px; side of a token, the stride of a ViT's patches and of the third stage
STAGE = 2
# raised for a file that holds no weights, or those of another network
UNREADABLE = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    UnpicklingError,
    ValueError,
)


@dataclass(frozen=True)
class TeacherSettings:
    """Image network of a `TeacherMethod` and its weights."""

    teacher: str  # timm model, or a method here that pre-trains on images
    teacher_weights: str = ""  # its checkpoint; "": the method pre-trains it first


class Teacher(nn.Module):
    """Frozen image network, a backbone or a timm model, with 1 or 3 input channels.

    Args:
        network: the network; its parameters no longer require gradients.
        channels: its input channels, 1 or 3.
        size: height and width in px of its input, multiples of 32; smaller images are padded.
        global_features: whether it returns one vector of an image instead of a map.

    Raises:
        UserError: if it is asked for a map and has no features at stride 16.
    """

    def __init__(
        self, network: nn.Module, channels: int, size: Size, global_features: bool = False
    ) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.channels = channels
        self.size = size
        self.global_features = global_features
        self.width = self(torch.zeros(1, 1, *size)).shape[1]

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Compute features of grey images (B, 1, h, w) uint8.

        Returns:
            Global features (B, width): a timm model's output or the average of a backbone's last
            stage. Or a map (B, width, H / 16, W / 16): the last one of this size.
        """
        network: Any = self.network.eval()
        images = images.expand(-1, self.channels, -1, -1)
        if isinstance(network, Backbone):
            stages, _ = network(pad_to(normalise(images), self.size).unsqueeze(1))
            return pooled(stages[-1]) if self.global_features else stages[STAGE].squeeze(1)
        if self.global_features:
            return network(clip_preprocess(images, network.pretrained_cfg))
        maps: Any = ()
        if hasattr(network, "forward_intermediates"):
            padded = pad_to(normalise(images), self.size)
            maps = network.forward_intermediates(padded, norm=True, intermediates_only=True)
        maps = [features for features in maps if features.shape[-1] * TOKEN_SIZE == self.size[1]]
        if not maps:
            raise UserError(
                "objective.teacher",
                "has no features at stride 16",
                "choose a ViT with 16 px patches, a Swin or a ResNet",
            )
        return maps[-1]


def clip_preprocess(images: Tensor, published: dict[str, Any]) -> Tensor:
    """Resize, crop and normalise images as CLIP (openai/CLIP, clip/clip.py, _transform).

    Args:
        images: RGB images (B, 3, h, w) uint8.
        published: timm's `pretrained_cfg` of the network, with its input size, mean and standard
            deviation.

    Returns:
        The central square (B, 3, side, side) float32 of the network's input size, after the shorter
        side was resized to it by bicubic interpolation.
    """
    side = published["input_size"][-1]
    resized = resize(images, [side], InterpolationMode.BICUBIC, antialias=True)
    square = center_crop(resized, [side, side])
    return normalise(square, (published["mean"], published["std"]))


def is_timm(name: str) -> bool:
    """Whether timm has a network of that name, with the pretrained tag in it, if any."""
    return timm.is_model(name) and ("." not in name or name in timm.list_models(include_tags=True))


class TeacherMethod(PairMethod):
    """A pair method with a frozen image network, `teacher`, of its settings, a `TeacherSettings`.

    It is built from its settings, the event backbone and the teacher.
    """

    # whether it learns from a vector of an image instead of a map
    global_features: ClassVar[bool] = False
    # whether a teacher pre-trained here has the backbone of the events instead of its recipe's
    same_backbone: ClassVar[bool] = False
    requires = "objective.teacher"
    cfg: Any
    teacher: Teacher

    @classmethod
    def from_data(cls, data: PretrainData) -> "TeacherMethod":
        teacher = cls.build_teacher(data.cfg.teacher, data.settings, padded_size(*data.size))
        return cls(data.cfg, cls.new_backbone(data), teacher)

    @classmethod
    def build_teacher(cls, name: str, settings: Pretraining, size: Size) -> Teacher:
        """Build a teacher with random weights.

        Args:
            name: timm model, or method that pre-trains a backbone on images.
            settings: of the method that learns from the teacher.
            size: height and width in px of the images.
        """
        if is_timm(name):
            return Teacher(cls._timm(name, size), 3, size, cls.global_features)
        recipe = pretraining_settings(name, settings.profile)
        channels = recipe.objective["channels"]
        architecture = settings.backbone if cls.same_backbone else recipe.backbone
        backbone = build_backbone(architecture, False, recipe.bins, size, channels)
        return Teacher(backbone, channels, size, cls.global_features)

    @classmethod
    def _timm(cls, name: str, size: Size, **options: Any) -> nn.Module:
        """Build a timm model; one that returns a map and has a fixed input size gets `size`."""
        published: Any = timm.get_pretrained_cfg(name)
        if published.fixed_input_size and not cls.global_features:
            options["img_size"] = size
        return timm.create_model(name, **options)

    def load_required(self, path: Path) -> None:
        name = self.cfg.teacher
        network = self.teacher.network
        if isinstance(network, Backbone):
            load_backbone(network, path)
            return
        try:  # by timm, which converts other formats of the same network
            weights = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}
            network.load_state_dict(self._timm(name, self.teacher.size, **weights).state_dict())
        except UNREADABLE as error:
            raise UserError(path, f"contains no weights of {name}", "use its checkpoint") from error
