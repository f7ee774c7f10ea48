"""Batches of random views of images in folders, and of DDD17's frames paired with their events."""

import hashlib
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.errors import UserError
from tespec.core.settings import Pretraining
from tespec.datasets.augment import apply_maps, sample_flip_zoom
from tespec.datasets.base import HELD_OUT, TEST, TRAIN
from tespec.datasets.ddd17 import IMAGES, read_index
from tespec.datasets.folder import LEFT_OUT, entries_below, split_recordings
from tespec.datasets.lanes import WHOLE, Shard, lanes_of, shuffled
from tespec.datasets.recording import Recording, window_us
from tespec.datasets.splits import split_folders, split_named

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# suffixes can hide others; Pillow opens some with external programs
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
HELD_OUT_SHARE = 0.1
HASHED = 256  # images of a folder whose content goes into its fingerprint
# first letters of Pillow's modes with more than 8 bits, whose values it would clip at 255
WIDE = ("I", "F")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
GREY_MEAN, GREY_DEVIATION = 0.449, 0.226
MIDDLE = round(255 * GREY_MEAN)  # fill value outside of a frame
ViewOf = Callable[[Image.Image], Tensor]
Augment = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]


@dataclass(frozen=True)
class ImageFolder:
    """Paths of training and held-out images, and the names of their folders as `classes`.

    Images that lie directly in `root` or in a split folder are without a class (`flat`). Folders of
    test splits (`excluded_test`) and folders next to split folders (`left_out`) are not used.
    """

    root: Path
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]
    classes: tuple[str, ...]
    flat: tuple[Path, ...]  # folders of images without a class
    excluded_test: tuple[str, ...]
    left_out: tuple[str, ...]

    def label(self, path: Path) -> int:
        """Class index of an image, given by its folder; -1 without a class."""
        return -1 if path.parent in self.flat else self.classes.index(path.parent.name)

    def counts(self) -> dict[str, dict[str, float]]:
        """Number of training ("train") and held-out ("held_out") images in each folder."""
        found: dict[str, dict[str, float]] = {}
        for name, split in (("train", self.train), ("held_out", self.held_out)):
            for folder, count in Counter(path.parent for path in split).items():
                found.setdefault(folder.relative_to(self.root).as_posix(), {})[name] = count
        return found

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits of a SHA-256 over names, splits, and the content of 256 evenly spread images."""
        digest, images = hashlib.sha256(), (*self.train, *self.held_out)
        for number, split in enumerate((self.train, self.held_out)):
            for path in split:
                digest.update(f"{number}|{path.relative_to(self.root).as_posix()}\n".encode())
        for place in np.unique(np.linspace(0, len(images) - 1, HASHED).astype(int)).tolist():
            digest.update(hashlib.sha256(images[place].read_bytes()).digest())
        return digest.hexdigest()[:12]


def open_images(root: Path) -> ImageFolder:
    """Find all images below `root` except those of test splits; images of validation splits are held out.

    Without a validation split, the tenth of each folder whose names have the lowest hashes is held
    out, at least one image of each folder with two or more. Files are listed once, without a `stat`
    of each.
    """
    if not root.is_dir():
        raise UserError(root, "is not a folder", "give a folder of images")
    found = sorted(Path(entry.path) for entry in entries_below(root) if _is_image(entry))
    splits = split_recordings(root, sorted({path.parent for path in found}))
    split = {folder: name for name in (TRAIN, HELD_OUT) for folder in splits[name]}
    train, held_out = (
        [path for path in found if split.get(path.parent) == name] for name in (TRAIN, HELD_OUT)
    )
    if len(train) + len(held_out) < 2:
        what = f"holds {len(train) + len(held_out)} images ({', '.join(ENDINGS)})"
        raise UserError(root, what, "give a folder with at least two")
    if not held_out:
        by_hash = sorted(
            train,
            key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest(),
        )
        of_folder: dict[Path, list[Path]] = {}
        for path in by_hash:
            of_folder.setdefault(path.parent, []).append(path)
        several = [own for own in of_folder.values() if len(own) > 1] or [by_hash]
        held_out = sorted(
            path for own in several for path in own[: max(1, round(HELD_OUT_SHARE * len(own)))]
        )
        train = sorted(set(train) - set(held_out))
    if not train:
        raise UserError(root, "holds images only in val", "put training images into train")
    folders = sorted({path.parent for path in (*train, *held_out)})
    flat = tuple(folder for folder in folders if folder == root or _is_split(folder, split[folder]))
    classes = sorted({folder.name for folder in folders if folder not in flat})
    unused = [
        tuple(folder.relative_to(root).as_posix() for folder in splits[name])
        for name in (TEST, LEFT_OUT)
    ]
    return ImageFolder(root, tuple(train), tuple(held_out), tuple(classes), flat, *unused)


def _is_split(folder: Path, split: str) -> bool:
    """Whether a folder of images is a split itself and not a class: a class may be called "train" as well."""
    siblings = {other for other, _ in split_folders(folder.parent)}
    return split_named(folder.name) == split and (split != TRAIN or len(siblings) > 1)


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Whether a file is named as an image; broken links count, since reading reports them; blocking pipes do not."""
    named = entry.name.lower().endswith(ENDINGS)
    return named and ((entry.is_symlink() and not os.path.exists(entry.path)) or entry.is_file())


def read_image(path: Path, channels: int) -> Image.Image:
    """Read an image of at most 8 bits per channel as grey (1 channel) or RGB (3)."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.mode.startswith(WIDE):
                what = f"is an image of mode {image.mode}, more than 8 bits per pixel, whose value range is unknown"
                raise UserError(path, what, "convert it to 8 bits")
            return image.convert("L" if channels == 1 else "RGB")
    except UNREADABLE as error:
        raise UserError(path, "not a readable image", "copy it again or remove it") from error


def as_input(
    pixels: Tensor, rgb: tuple[Sequence[float], Sequence[float]] = (MEAN, DEVIATION)
) -> Tensor:
    """Normalise pixels (..., C, H, W) uint8 to float32; float32 is returned as it is.

    Grey pixels are normalised by ImageNet's statistics, and RGB ones by the means and deviations
    `rgb`, ImageNet's by default.
    """
    if pixels.dtype is not torch.uint8:
        return pixels
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if pixels.shape[-3] == 1 else rgb
    of_channels = torch.tensor((mean, deviation)).to(pixels.device, non_blocking=True)[
        ..., None, None
    ]
    return (pixels.float() / 255 - of_channels[0]) / of_channels[1]


@contextmanager
def seeded(*seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch, from which library transforms draw; restore them afterwards."""
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    with torch.random.fork_rng(devices=[]):
        before = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002
        torch.default_generator.manual_seed(state)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


class ImageBatches(Dataset[dict[str, Tensor]]):
    """Batches by step: `views` (B, count, C, H, W) uint8 or float32, see `as_input`, and `labels` (B,) int64.

    Each of `views` turns an RGB image into a view (C, H, W), possibly at random, see `seeded`. Each
    epoch shows every image once, in a different order.
    """

    def __init__(
        self,
        folder: ImageFolder,
        views: Sequence[ViewOf],
        batch_size: int,
        seed: int,
        shard: Shard = WHOLE,
    ) -> None:
        self._folder, self._of, self._batch, self._seed = folder, views, batch_size, seed
        self._share = lanes_of(batch_size, shard)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        positions = [step * self._batch + row for row in self._share]
        paths = [
            self._folder.train[number]
            for number in shuffled(positions, len(self._folder.train), self._seed)
        ]
        seeds = [[self._seed, *b"views", position] for position in positions]
        return _views(self._folder, paths, self._of, seeds)


def held_out_batch(
    folder: ImageFolder, paths: Sequence[Path], views: Sequence[ViewOf]
) -> dict[str, Tensor]:
    """Load a batch like those of `ImageBatches`, with the same random views of an image in every run."""
    return _views(folder, paths, views, [[*b"held out", *path.name.encode()] for path in paths])


def _views(
    folder: ImageFolder, paths: Sequence[Path], views: Sequence[ViewOf], seeds: Sequence[list[int]]
) -> dict[str, Tensor]:
    drawn = []
    for path, seed in zip(paths, seeds, strict=True):
        image = read_image(path, 3)
        with seeded(*seed):
            drawn.append(torch.stack([view(image) for view in views]))
    return {
        "views": torch.stack(drawn),
        "labels": torch.tensor([folder.label(path) for path in paths]),
    }


@dataclass(frozen=True, eq=False)
class Paired(Recording):
    """A recording whose windows each end at a frame; `images` holds the frame of each window."""

    images: tuple[Path, ...]

    def image(self, index: int) -> NDArray[np.uint8]:
        """Frame (1, H, W) uint8 at the end of a window, resized to the size of the histograms."""
        size = (self.region.width, self.region.height)
        return np.array(
            read_image(self.images[index], 1).resize(size, Image.Resampling.BILINEAR), np.uint8
        )[None]


def paired(recordings: Sequence[Recording], window_ms: float) -> list[Paired]:
    """Return the recordings that have frames, with windows of `window_ms` that end at frames within the given parts."""
    found, length = [], window_us(window_ms)
    for recording in (each for each in recordings if (each.path / IMAGES).is_dir() and len(each)):
        times, *_ = read_index(recording.path)
        every = (
            (re.search(r"\d+$", path.stem), path)
            for path in (recording.path / IMAGES).glob("[!.]*.png")
        )
        paths = {int(number[0]): path for number, path in every if number}
        first, last = int(recording.windows[0, 0]) + length, int(recording.windows[-1, 1])
        kept = [
            number
            for number, time in enumerate(times.tolist())
            if first <= time <= last and number + 1 in paths
        ]
        if kept:
            windows = np.stack([times[kept] - length, times[kept]], axis=1)
            images = tuple(paths[number + 1] for number in kept)
            found.append(
                Paired(recording.name, recording.source, recording.region, windows, images)
            )
    if not found:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(
            where, f"no recording has images in {IMAGES}/", "give recordings of the DDD17 archive"
        )
    return found


def subsample(recordings: Sequence[Paired], count: int) -> list[Paired]:
    """Keep at most `count` windows, but at least one per recording, spread evenly over each recording."""
    parts, most = [], max(1, count // len(recordings))
    for recording in recordings:
        places = np.unique(
            np.linspace(0, len(recording) - 1, min(most, len(recording))).round().astype(int)
        )
        images = tuple(recording.images[place] for place in places.tolist())
        parts.append(replace(recording, windows=recording.windows[places], images=images))
    return parts


class PairBatches(Dataset[dict[str, Tensor]]):
    """Batches by step: `histograms` (B, 1, 2*bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8, at random times.

    Both get the same flip and zoom, sampled anew for each pair; `augment` changes only the
    histogram. Each epoch shows every pair once, in a different order.
    """

    def __init__(
        self,
        recordings: Sequence[Paired],
        settings: Pretraining,
        seed: int,
        shard: Shard = WHOLE,
        augment: Augment = lambda histogram, _: histogram,
    ) -> None:
        self._settings, self._seed, self._augment = settings, seed, augment
        self._share = lanes_of(settings.batch_size, shard)
        self._pairs = [
            (recording, window) for recording in recordings for window in range(len(recording))
        ]

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        settings, positions = (
            self._settings,
            [step * self._settings.batch_size + row for row in self._share],
        )
        pairs = [
            self._pairs[number] for number in shuffled(positions, len(self._pairs), self._seed)
        ]
        size = (self._pairs[0][0].region.height, self._pairs[0][0].region.width)
        histograms = np.empty((len(pairs), 1, 2 * settings.bins, *size), np.uint8)
        images = np.empty((len(pairs), 1, 1, *size), np.uint8)
        for row, (recording, window) in enumerate(pairs):
            generator = np.random.default_rng([self._seed, *b"augmentation", positions[row]])
            flip_zoom = sample_flip_zoom(generator, settings.augmentation, *size)
            recording.fill(histograms[row], window, settings.binning, flip_zoom)
            histograms[row] = self._augment(histograms[row], generator)
            images[row, 0] = apply_maps(recording.image(window), flip_zoom, MIDDLE)
        return {"histograms": torch.from_numpy(histograms), "images": torch.from_numpy(images)}
