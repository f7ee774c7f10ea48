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
from tespec.datasets.lanes import Shuffled
from tespec.datasets.splits import Splits

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
        tested_on: names of folders that were left alone.
    """

    root: Path
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]
    classes: tuple[str, ...]
    tested_on: tuple[str, ...]

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
    folders = Splits(root).sort(sorted({path.parent for path in found}))
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
    tested_on = tuple(folder.relative_to(root).as_posix() for folder in folders[TEST])
    return ImageFolder(root, tuple(train), tuple(held_out), tuple(classes), tested_on)


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


def as_input(image: Image.Image) -> NDArray[np.float32]:
    """(C, H, W) float32 of an image, with ImageNet's mean and deviation taken out."""
    pixels = np.asarray(image, np.float32) / 255
    if pixels.ndim == 2:
        return ((pixels - GREY_MEAN) / GREY_DEVIATION)[None].astype(np.float32)
    centred = (pixels - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)
    return np.ascontiguousarray(centred.transpose(2, 0, 1))


def random_view(image: Image.Image, rule: ViewRule, generator: np.random.Generator) -> NDArray[np.float32]:
    """A crop of an image, resized, mirrored by chance, with its brightness and contrast changed, (C, H, W) float32."""
    width, height = image.size
    area = generator.uniform(*rule.scale) * width * height
    aspect = float(np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3))))
    columns, rows = min(width, max(1.0, (area * aspect) ** 0.5)), min(height, max(1.0, (area / aspect) ** 0.5))
    left, top = generator.random() * (width - columns), generator.random() * (height - rows)
    box = (left, top, left + columns, top + rows)
    view = as_input(image.resize((rule.size[1], rule.size[0]), Image.Resampling.BILINEAR, box=box))
    if generator.random() < 0.5:
        view = view[..., ::-1]
    brighter, sharper = generator.uniform(-rule.jitter, rule.jitter, 2)
    mean = view.mean()
    return np.ascontiguousarray((view - mean) * (1 + sharper) + mean + brighter, dtype=np.float32)


def whole_view(image: Image.Image, rule: ViewRule) -> NDArray[np.float32]:
    """The whole image, resized, (C, H, W) float32."""
    return as_input(image.resize((rule.size[1], rule.size[0]), Image.Resampling.BILINEAR))


class ImageSteps(Dataset[dict[str, Tensor]]):
    """Batches by step: `views` (B, count, C, H, W) float32 and `labels` (B,) int64, pure functions of (seed, step).

    Each pass shows every image once, in another order.
    """

    left_out: tuple[str, ...] = ()
    segments = 1

    def __init__(self, folder: ImageFolder, rule: ViewRule, batch_size: int, seed: int, shard: Shard = WHOLE) -> None:
        self._folder, self._rule, self._batch, self._seed = folder, rule, batch_size, seed
        self._share, self._order = lanes_of(batch_size, shard), Shuffled(len(folder.train), seed)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        views, labels = [], []
        for position in (step * self._batch + row for row in self._share):
            path = self._folder.train[self._order[position]]
            image = read_image(path, self._rule.channels)
            generator = np.random.default_rng([self._seed, *b"views", position])
            views.append(np.stack([random_view(image, self._rule, generator) for _ in range(self._rule.count)]))
            labels.append(self._folder.label(path))
        return {"views": torch.from_numpy(np.stack(views)), "labels": torch.tensor(labels)}


def held_out_batch(folder: ImageFolder, paths: Sequence[Path], rule: ViewRule) -> dict[str, Tensor]:
    """Whole images as `views` (B, count, C, H, W), each as often as views are drawn, and `labels` (B,)."""
    images = [whole_view(read_image(path, rule.channels), rule) for path in paths]
    views = torch.from_numpy(np.stack(images)).unsqueeze(1).expand(-1, rule.count, -1, -1, -1)
    return {"views": views.contiguous(), "labels": torch.tensor([folder.label(path) for path in paths])}
