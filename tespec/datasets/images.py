"""Folders of images, with a folder for each class or without, and batches of random views of them."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.errors import UserError
from tespec.datasets.base import HELD_OUT, TEST, TRAIN
from tespec.datasets.batches import WHOLE, Shard, lanes_of
from tespec.datasets.folder import split_recordings
from tespec.datasets.lanes import Shuffled

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
UNREADABLE = (
    UnidentifiedImageError,
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
HELD_OUT_SHARE = 0.1
MODES = {1: "L", 3: "RGB"}
WIDE = ("I", "F")  # what Pillow's modes of more than 8 bits begin with; it cuts their values off at 255
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
GREY_MEAN, GREY_DEVIATION = 0.449, 0.226


@dataclass(frozen=True)
class ImageFolder:
    """Images to train on, and those held out.

    Attributes:
        root: the folder.
        train: images, sorted by path.
        held_out: likewise.
        classes: names of the folders that images lie in, sorted.
        excluded_test: names of folders that were left alone.
    """

    root: Path
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]
    classes: tuple[str, ...]
    excluded_test: tuple[str, ...]

    def label(self, path: Path) -> int:
        """Number of the class an image lies in."""
        return self.classes.index(path.parent.name)

    def counts(self) -> dict[str, dict[str, float]]:
        """Number of images of each folder that are trained on ("train") and "held_out"."""
        found: dict[str, dict[str, float]] = {}
        for name, split in (("train", self.train), ("held_out", self.held_out)):
            for folder, count in Counter(path.parent for path in split).items():
                found.setdefault(folder.relative_to(self.root).as_posix(), {})[name] = count
        return found

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits of SHA-256 over the splits and the images' names and sizes in bytes."""
        digest = hashlib.sha256()
        for number, split in enumerate((self.train, self.held_out)):
            for path in split:
                name = path.relative_to(self.root).as_posix()
                digest.update(f"{number}|{name}|{path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]


def open_images(root: Path) -> ImageFolder:
    """All images below `root` but those of test splits; those of validation splits are held out, see `Splits`.

    Where there are none of those, the tenth whose names have the lowest hashes is held out.

    Raises:
        UserError: no folder, fewer than two images, or none to train on.
    """
    if not root.is_dir():
        raise UserError(root, "is no folder of images", "give a folder")
    found = sorted(
        path for path in root.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file() and _shown(path, root)
    )
    folders = split_recordings(root, sorted({path.parent for path in found}))
    split = {folder: name for name in (TRAIN, HELD_OUT) for folder in folders[name]}
    train, held_out = ([path for path in found if split.get(path.parent) == name] for name in (TRAIN, HELD_OUT))
    if len(train) + len(held_out) < 2:
        what = f"holds {len(train) + len(held_out)} images ({', '.join(ENDINGS)})"
        raise UserError(root, what, "give a folder with more")
    if not held_out:
        by_hash = sorted(train, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
        held_out = sorted(by_hash[: max(1, round(HELD_OUT_SHARE * len(train)))])
        train = sorted(set(train) - set(held_out))
    if not train:
        raise UserError(root, "holds images below val alone", "put those to train on below train")
    classes = sorted({path.parent.name for path in (*train, *held_out)})
    excluded_test = tuple(folder.relative_to(root).as_posix() for folder in folders[TEST])
    return ImageFolder(root, tuple(train), tuple(held_out), tuple(classes), excluded_test)


def _shown(path: Path, root: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(root).parts)


def read_image(path: Path, channels: int) -> Image.Image:
    """An image as grey (1 channel) or RGB (3).

    Raises:
        UserError: it cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Other formats hide behind these names as well, and some are handed to programs outside.
            with Image.open(path, formats=FORMATS) as image:
                if image.mode.startswith(WIDE):
                    what = f"is an image of mode {image.mode}, more than 8 bits a pixel, whose range nothing tells"
                    raise UserError(path, what, "convert it to 8 bits")
                return image.convert(MODES[channels])
    except UNREADABLE as error:
        raise UserError(path, "not a readable image", "copy it again or remove it") from error


@dataclass(frozen=True)
class ViewRule:
    """How views are drawn.

    Attributes:
        size: (H, W) of a view in px.
        channels: 1 or 3.
        scale: lowest and highest share of the image that a view shows.
        jitter: strongest change of brightness and of contrast, as a share.
        count: views per image.
    """

    size: tuple[int, int]
    channels: int
    scale: tuple[float, float]
    jitter: float
    count: int


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """(C, H, W) uint8 of an image."""
    pixels = np.array(image, np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def as_input(pixels: Tensor, light: Tensor | None = None) -> Tensor:
    """What a network sees of pixels, computed where they are: ImageNet's mean and deviation taken out.

    Args:
        pixels: (..., C, H, W) uint8; of float32 nothing is taken out, it is seen as it is.
        light: (..., 2) float32, what is added to the brightness of each image, and by what share its contrast grows.
            None: nothing.

    Returns:
        (..., C, H, W) float32.
    """
    if pixels.dtype is not torch.uint8:
        return pixels
    grey = pixels.shape[-3] == 1
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if grey else (MEAN, DEVIATION)
    of_channels = (torch.tensor(each).to(pixels.device, non_blocking=True).view(-1, 1, 1) for each in (mean, deviation))
    seen = (pixels.float() / 255 - next(of_channels)) / next(of_channels)
    if light is None:
        return seen
    brighter, sharper = light[..., None, None, None].unbind(-4)
    middle = seen.mean((-3, -2, -1), keepdim=True)
    return (seen - middle) * (1 + sharper) + middle + brighter


def random_view(
    image: Image.Image, rule: ViewRule, generator: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A crop (C, H, W) of an image, resized and mirrored by chance, and its light (2,): see `as_input`."""
    width, height = image.size
    area = generator.uniform(*rule.scale) * width * height
    aspect = float(np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3))))
    columns, rows = min(width, max(1.0, (area * aspect) ** 0.5)), min(height, max(1.0, (area / aspect) ** 0.5))
    left, top = generator.random() * (width - columns), generator.random() * (height - rows)
    box = (left, top, left + columns, top + rows)
    view = pixels_of(image.resize((rule.size[1], rule.size[0]), Image.Resampling.BILINEAR, box=box))
    if generator.random() < 0.5:
        view = np.ascontiguousarray(view[..., ::-1])
    return view, generator.uniform(-rule.jitter, rule.jitter, 2).astype(np.float32)


def whole_view(image: Image.Image, rule: ViewRule) -> NDArray[np.uint8]:
    """The whole image, resized, (C, H, W) uint8."""
    return pixels_of(image.resize((rule.size[1], rule.size[0]), Image.Resampling.BILINEAR))


class ImageSteps(Dataset[dict[str, Tensor]]):
    """Batches by step: `views` (B, count, C, H, W) uint8, their `light` (B, count, 2) float32, and `labels` (B,) int64.

    They are pure functions of (seed, step), and `as_input` makes of them what a network sees. Each pass shows every
    image once, in another order.
    """

    left_out: tuple[str, ...] = ()
    segments = 1

    def __init__(self, folder: ImageFolder, rule: ViewRule, batch_size: int, seed: int, shard: Shard = WHOLE) -> None:
        self._folder, self._rule, self._batch, self._seed = folder, rule, batch_size, seed
        self._share, self._order = lanes_of(batch_size, shard), Shuffled(len(folder.train), seed)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        views, light, labels = [], [], []
        for position in (step * self._batch + row for row in self._share):
            path = self._folder.train[self._order[position]]
            image = read_image(path, self._rule.channels)
            generator = np.random.default_rng([self._seed, *b"views", position])
            drawn = [random_view(image, self._rule, generator) for _ in range(self._rule.count)]
            views.append(np.stack([view for view, _ in drawn]))
            light.append(np.stack([each for _, each in drawn]))
            labels.append(self._folder.label(path))
        return {
            "views": torch.from_numpy(np.stack(views)),
            "light": torch.from_numpy(np.stack(light)),
            "labels": torch.tensor(labels),
        }


def held_out_batch(folder: ImageFolder, paths: Sequence[Path], rule: ViewRule) -> dict[str, Tensor]:
    """A batch as of `ImageSteps`, the same for every run.

    Where one view of each image is drawn it is the whole image, in its own light. Several are drawn by chance, the same
    ones of an image each time: two that are the same would say nothing of a network that has to find them alike.
    """
    views, light = [], []
    for path in paths:
        image = read_image(path, rule.channels)
        if rule.count == 1:
            drawn = [(whole_view(image, rule), np.zeros(2, np.float32))]
        else:
            generator = np.random.default_rng([*b"held out", *path.name.encode()])
            drawn = [random_view(image, rule, generator) for _ in range(rule.count)]
        views.append(np.stack([view for view, _ in drawn]))
        light.append(np.stack([each for _, each in drawn]))
    return {
        "views": torch.from_numpy(np.stack(views)),
        "light": torch.from_numpy(np.stack(light)),
        "labels": torch.tensor([folder.label(path) for path in paths]),
    }
