"""Batches of random views of images in folders, and of DDD17's frames with their events."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from tespec.core.errors import UserError
from tespec.core.settings import Pretraining
from tespec.datasets.augment import sample_flip_zoom
from tespec.datasets.base import HELD_OUT, TEST, TRAIN
from tespec.datasets.batches import WHOLE, Shard, lanes_of
from tespec.datasets.ddd17 import image_index
from tespec.datasets.folder import split_recordings
from tespec.datasets.lanes import Shuffled, lengths_of
from tespec.datasets.recording import Recording
from tespec.datasets.windows import windows_of_length
from tespec.events.spatial import apply_maps

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # others hide behind these names too; Pillow hands some to programs outside
UNREADABLE = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)
HELD_OUT_SHARE = 0.1
HASHED = 256  # images of a folder
THREADS = 8  # that decode a batch, at most
MODES = {1: "L", 3: "RGB"}
WIDE = ("I", "F")  # what Pillow's modes of more than 8 bits begin with; it cuts their values off at 255
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
GREY_MEAN, GREY_DEVIATION = 0.449, 0.226
FRAMES = "imgs"  # folder of a DDD17 recording
MIDDLE = round(255 * GREY_MEAN)  # outside of a frame
T = TypeVar("T")
R = TypeVar("R")
Augment = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]


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

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    def label(self, path: Path) -> int:
        """Number of the class an image lies in."""
        return self._numbers[path.parent.name]

    def counts(self) -> dict[str, dict[str, float]]:
        """Number of images of each folder that are trained on ("train") and "held_out"."""
        found: dict[str, dict[str, float]] = {}
        for name, split in (("train", self.train), ("held_out", self.held_out)):
            for folder, count in Counter(path.parent for path in split).items():
                found.setdefault(folder.relative_to(self.root).as_posix(), {})[name] = count
        return found

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits of SHA-256 over all images' names and splits, and the content of 256 of them.

        These are spread evenly, so that it takes seconds for a million images; a change of others goes unseen.
        """
        digest, images = hashlib.sha256(), (*self.train, *self.held_out)
        for number, split in enumerate((self.train, self.held_out)):
            for path in split:
                digest.update(f"{number}|{path.relative_to(self.root).as_posix()}\n".encode())
        for place in np.unique(np.linspace(0, len(images) - 1, HASHED).astype(int)).tolist():
            digest.update(hashlib.sha256(images[place].read_bytes()).digest())
        return digest.hexdigest()[:12]


def open_images(root: Path) -> ImageFolder:
    """All images below `root` but those of test splits; those of validation splits are held out.

    Without a validation split, the tenth whose names have the lowest hashes is held out. Files are listed once, without
    a look at each.

    Raises:
        UserError: no folder, fewer than two images, or none to train on.
    """
    if not root.is_dir():
        raise UserError(root, "is no folder of images", "give a folder")
    found = sorted(map(Path, _images_below(str(root))))
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


def _images_below(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _images_below(entry.path)
            elif entry.name.lower().endswith(ENDINGS) and entry.is_file():
                yield entry.path


def read_image(path: Path, channels: int) -> Image.Image:
    """An image as grey (1 channel) or RGB (3).

    Raises:
        UserError: it cannot be read.
    """
    try:
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


def as_input(pixels: Tensor, color_jitter: Tensor | None = None) -> Tensor:
    """What a network sees of pixels, computed where they are: normalised by ImageNet's mean and deviation.

    Args:
        pixels: (..., C, H, W) uint8; float32 is returned as it is.
        color_jitter: (..., 2) float32, what is added to the brightness of each image, and the share by which its
            contrast grows; None: nothing.

    Returns:
        (..., C, H, W) float32.
    """
    if pixels.dtype is not torch.uint8:
        return pixels
    grey = pixels.shape[-3] == 1
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if grey else (MEAN, DEVIATION)
    of_channels = (torch.tensor(each).to(pixels.device, non_blocking=True).view(-1, 1, 1) for each in (mean, deviation))
    seen = (pixels.float() / 255 - next(of_channels)) / next(of_channels)
    if color_jitter is None:
        return seen
    brightness, contrast = color_jitter[..., None, None, None].unbind(-4)
    middle = seen.mean((-3, -2, -1), keepdim=True)
    return (seen - middle) * (1 + contrast) + middle + brightness


def random_view(
    image: Image.Image, rule: ViewRule, generator: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A random crop (C, H, W) of an image, resized and flipped at random, and its color jitter (2,): see `as_input`."""
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


class ImageBatches(Dataset[dict[str, Tensor]]):
    """Batches by step: `views` (B, count, C, H, W) uint8, `color_jitter` (B, count, 2) float32, `labels` (B,) int64.

    They are pure functions of (seed, step), and `as_input` makes of them what a network sees. Each epoch shows every
    image once, in another order.
    """

    left_out: tuple[str, ...] = ()
    segments = 1

    def __init__(self, folder: ImageFolder, rule: ViewRule, batch_size: int, seed: int, shard: Shard = WHOLE) -> None:
        self._folder, self._rule, self._batch, self._seed = folder, rule, batch_size, seed
        self._share, self._order = lanes_of(batch_size, shard), Shuffled(len(folder.train), seed)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        positions = [step * self._batch + row for row in self._share]
        paths = [self._folder.train[self._order[position]] for position in positions]
        seeds = [[self._seed, *b"views", position] for position in positions]
        return _views(self._folder, paths, self._rule, seeds)


def held_out_batch(folder: ImageFolder, paths: Sequence[Path], rule: ViewRule) -> dict[str, Tensor]:
    """A batch as of `ImageBatches`, the same for every run.

    Where one view of each image is drawn it is the whole image, without color jitter. Several are drawn at random, the
    same ones of an image each time: equal ones would say nothing of a network that has to find them alike.
    """
    seeds = None if rule.count == 1 else [[*b"held out", *path.name.encode()] for path in paths]
    return _views(folder, paths, rule, seeds)


def _views(
    folder: ImageFolder, paths: Sequence[Path], rule: ViewRule, seeds: Sequence[list[int]] | None
) -> dict[str, Tensor]:
    """A batch of random views, or of whole images where there are no seeds."""

    def draw(number: int) -> list[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
        image = read_image(paths[number], rule.channels)
        if seeds is None:
            whole = image.resize((rule.size[1], rule.size[0]), Image.Resampling.BILINEAR)
            return [(pixels_of(whole), np.zeros(2, np.float32))]
        generator = np.random.default_rng(seeds[number])
        return [random_view(image, rule, generator) for _ in range(rule.count)]

    drawn = _in_threads(draw, range(len(paths)))
    return {
        "views": torch.from_numpy(np.array([[view for view, _ in each] for each in drawn])),
        "color_jitter": torch.from_numpy(np.array([[jitter for _, jitter in each] for each in drawn])),
        "labels": torch.tensor([folder.label(path) for path in paths]),
    }


def _in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Results in order, by as many threads as this process has cores; Pillow decodes without Python's lock."""
    worker = get_worker_info()
    threads = min(THREADS, (os.cpu_count() or 1) // (worker.num_workers if worker else 1), len(items))
    if threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


@dataclass(frozen=True, eq=False)
class Paired(Recording):
    """A recording whose windows each end at a frame; `images` has one for each window."""

    images: tuple[Path, ...]

    def image(self, index: int) -> NDArray[np.uint8]:
        """(1, H, W) uint8 of the frame at the end of a window, of the size of the histograms."""
        grey = read_image(self.images[index], 1)
        size = (self.region.width, self.region.height)
        return pixels_of(grey.resize(size, Image.Resampling.BILINEAR) if grey.size != size else grey)


def paired(recordings: Sequence[Recording], window_ms: float) -> list[Paired]:
    """Those recordings that have frames, with windows of `window_ms` that end at them, within the parts given.

    Raises:
        UserError: none has.
    """
    found = []
    for recording in recordings:
        if not (recording.path / FRAMES).is_dir() or not len(recording.windows):
            continue
        times, _ = image_index(recording.path)
        paths = {int(path.stem.rpartition("_")[2]): path for path in (recording.path / FRAMES).glob("img_*.png")}
        first, last = int(recording.windows[0, 0]) + round(1000 * window_ms), int(recording.windows[-1, 1])
        kept = [number for number, time in enumerate(times.tolist()) if first <= time <= last and number + 1 in paths]
        if kept:
            windows = windows_of_length(times[kept], round(1000 * window_ms))
            images = tuple(paths[number + 1] for number in kept)
            found.append(Paired(recording.name, recording.source, recording.region, windows, images))
    if not found:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(where, f"no recording has images in {FRAMES}/", "give recordings of the DDD17 archive")
    return found


def subsample(recordings: Sequence[Paired], count: int) -> list[Paired]:
    """`count` windows at most, spread evenly over each recording."""
    each = max(1, count // len(recordings))
    parts = []
    for recording in recordings:
        places = np.unique(np.linspace(0, len(recording) - 1, min(each, len(recording))).round().astype(int))
        images = tuple(recording.images[place] for place in places.tolist())
        parts.append(replace(recording, windows=recording.windows[places], images=images))
    return parts


class PairBatches(Dataset[dict[str, Tensor]]):
    """Batches by step: `histograms` (B, 1, 2*bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8, at random times.

    Both are flipped and zoomed alike, sampled anew for each pair; `augment` alters the histogram alone. Each epoch
    shows every pair once, in another order.
    """

    left_out: tuple[str, ...] = ()
    segments = 1

    def __init__(
        self,
        recordings: Sequence[Paired],
        settings: Pretraining,
        seed: int,
        shard: Shard = WHOLE,
        augment: Augment = lambda histogram, _: histogram,
    ) -> None:
        self._recordings, self._settings, self._seed, self._augment = recordings, settings, seed, augment
        self._share = lanes_of(settings.batch_size, shard)
        self._ends = np.cumsum(lengths_of(recordings))
        self._order = Shuffled(int(self._ends[-1]), seed)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        settings, positions = self._settings, [step * self._settings.batch_size + row for row in self._share]
        places = [self._place(self._order[position]) for position in positions]
        frames = _in_threads(lambda place: place[0].image(place[1]), places)
        histograms, images = [], []
        for position, (recording, window), frame in zip(positions, places, frames, strict=True):
            size = (recording.region.height, recording.region.width)
            generator = np.random.default_rng([self._seed, *b"augmentation", position])
            view = sample_flip_zoom(generator, settings.augmentation, *size)
            histogram = np.empty((1, 2 * settings.bins, *size), np.uint8)
            recording.fill(histogram, window, settings.bins, settings.rule, view)
            histograms.append(self._augment(histogram, generator))
            images.append(apply_maps(frame, view, MIDDLE)[None])
        return {
            "histograms": torch.from_numpy(np.stack(histograms)),
            "images": torch.from_numpy(np.stack(images)),
        }

    def _place(self, number: int) -> tuple[Paired, int]:
        """Recording and window of a pair."""
        index = int(np.searchsorted(self._ends, number, side="right"))
        recording = self._recordings[index]
        return recording, number - int(self._ends[index]) + len(recording)
