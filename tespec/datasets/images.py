"""Batches of augmented images in folders, and of DDD17's frames paired with their events."""

import hashlib
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
from tespec.core.files import regular_file
from tespec.core.hashes import Contents
from tespec.core.settings import Pretraining
from tespec.datasets.augment import apply_maps, sample_flip_zoom
from tespec.datasets.base import HELD_OUT, TEST, TRAIN
from tespec.datasets.ddd17 import IMAGES, read_image_times
from tespec.datasets.folder import (
    LEFT_OUT,
    name_hash,
    recording_name,
    split_recordings,
    walk,
)
from tespec.datasets.lanes import FULL_BATCH, Shard, lanes_of, shuffled
from tespec.datasets.recording import Recording, window_us
from tespec.datasets.splits import split_folders, split_named

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# suffixes can hide others; Pillow opens some with external programs
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
HELD_OUT_FRACTION = 0.1  # of the images of a folder
# first letters of Pillow's modes with more than 8 bits, whose values it would clip at 255
WIDE = ("I", "F")
# of ImageNet
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
GREY_MEAN = 0.449
GREY_DEVIATION = 0.226
MIDDLE = round(255 * GREY_MEAN)  # fill value outside of a frame
ViewTransform = Callable[[Image.Image], Tensor]
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
        counts: dict[str, dict[str, float]] = {}
        for split, paths in (("train", self.train), ("held_out", self.held_out)):
            for folder, count in Counter(path.parent for path in paths).items():
                counts.setdefault(folder.relative_to(self.root).as_posix(), {})[split] = count
        return counts

    def contents(self) -> Contents:
        """All images, named "split/folder: image" with split 0 for training, 1 for held out."""
        return {
            f"{split}/{path.parent.relative_to(self.root).as_posix()}: {path.name}": (path,)
            for split, paths in enumerate((self.train, self.held_out))
            for path in paths
        }


def open_images(root: Path) -> ImageFolder:
    """Find all images below a folder, except those of test splits, and hold out some.

    Images of a validation split are held out. Without one, the tenth of each folder whose names
    have the lowest hashes is held out, at least one image of each folder with two or more. Files
    are listed once, without a `stat` of each.

    Raises:
        UserError: if there are fewer than two images, or none to train on.
    """
    paths = sorted(
        Path(folder, name)
        for folder, _, files in walk(root)
        for name in files
        if name.lower().endswith(ENDINGS)
    )
    splits = split_recordings(root, sorted({path.parent for path in paths}))
    split_of = {folder: split for split in (TRAIN, HELD_OUT) for folder in splits[split]}
    train = [path for path in paths if split_of.get(path.parent) == TRAIN]
    held_out = [path for path in paths if split_of.get(path.parent) == HELD_OUT]
    if not held_out:
        held_out = _hold_out(root, train)
        train = sorted(set(train) - set(held_out))
    if not train:
        raise UserError(
            root,
            f"holds {len(held_out)} images ({', '.join(ENDINGS)}), and none of them to train on",
            "give at least two, and put those for training into train if there is a folder val",
        )
    folders = sorted({path.parent for path in (*train, *held_out)})
    flat = [folder for folder in folders if folder == root or _is_split(folder, split_of[folder])]
    return ImageFolder(
        root,
        tuple(train),
        tuple(held_out),
        tuple(sorted({folder.name for folder in folders if folder not in flat})),
        tuple(flat),
        excluded_test=tuple(folder.relative_to(root).as_posix() for folder in splits[TEST]),
        left_out=tuple(folder.relative_to(root).as_posix() for folder in splits[LEFT_OUT]),
    )


def _hold_out(root: Path, paths: Sequence[Path]) -> list[Path]:
    """Choose a tenth of each folder's images, at least one of each folder with two or more."""
    by_hash = sorted(paths, key=lambda path: name_hash(recording_name(root, path)))
    by_folder: dict[Path, list[Path]] = {}
    for path in by_hash:
        by_folder.setdefault(path.parent, []).append(path)
    groups = [group for group in by_folder.values() if len(group) > 1] or [by_hash]
    parts = (group[: max(1, round(HELD_OUT_FRACTION * len(group)))] for group in groups)
    return sorted(path for part in parts for path in part)


def _is_split(folder: Path, split: str) -> bool:
    """Whether a folder of images is a split and not a class; a class may be called "train" too."""
    siblings = {other for other, _ in split_folders(folder.parent)}
    return split_named(folder.name) == split and (split != TRAIN or len(siblings) > 1)


def read_image(path: Path, channels: int) -> Image.Image:
    """Read an image of at most 8 bits per channel.

    Args:
        path: image file.
        channels: 1 for grey, 3 for RGB.

    Raises:
        UserError: if the file is not readable, or has more than 8 bits per channel.
    """
    try:
        with Image.open(regular_file(path), formats=FORMATS) as image:
            if image.mode.startswith(WIDE):
                raise UserError(
                    path,
                    f"is an image of mode {image.mode}, more than 8 bits per pixel, "
                    "whose value range is unknown",
                    "convert it to 8 bits",
                )
            return image.convert("L" if channels == 1 else "RGB")
    except UNREADABLE as error:
        raise UserError(path, "not a readable image", "copy it again or remove it") from error


def normalise(
    pixels: Tensor, rgb: tuple[Sequence[float], Sequence[float]] = (MEAN, DEVIATION)
) -> Tensor:
    """Normalise images.

    Args:
        pixels: (..., C, H, W) uint8; float32 is returned as it is.
        rgb: mean and standard deviation of each channel of RGB images, ImageNet's by default; grey
            images have ImageNet's grey ones.

    Returns:
        Images (..., C, H, W) float32.
    """
    if pixels.dtype is not torch.uint8:
        return pixels
    statistics = torch.tensor(((GREY_MEAN,), (GREY_DEVIATION,)) if pixels.shape[-3] == 1 else rgb)
    mean, deviation = statistics.to(pixels.device, non_blocking=True)[..., None, None]  # (C, 1, 1)
    return (pixels.float() / 255 - mean) / deviation


@contextmanager
def seeded(*seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch, and restore them afterwards.

    Transforms of libraries draw from these generators.
    """
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    with torch.random.fork_rng(devices=[]):
        python_state = random.getstate()
        numpy_state = np.random.get_state()  # noqa: NPY002
        random.seed(state)
        np.random.seed(state)  # noqa: NPY002
        torch.default_generator.manual_seed(state)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


class ImageBatches(Dataset[dict[str, Tensor]]):
    """Batches of augmented images by step.

    Item k holds `views` (B, V, C, H, W) uint8 or float32, see `normalise`, and `labels` (B,) int64.
    Each epoch shows every image once, in a different order.

    Args:
        folder: images, of which the training ones are used.
        views: V functions that turn an RGB image into a tensor (C, H, W), possibly at random, see
            `seeded`.
        batch_size: number of images of a step, in all shards together.
        seed: seed of the order and of the views.
        shard: index and number of the shards.
    """

    def __init__(
        self,
        folder: ImageFolder,
        views: Sequence[ViewTransform],
        batch_size: int,
        seed: int,
        shard: Shard = FULL_BATCH,
    ) -> None:
        self._folder = folder
        self._views = views
        self._batch_size = batch_size
        self._seed = seed
        self._rows = lanes_of(batch_size, shard)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        positions = [step * self._batch_size + row for row in self._rows]
        indices = shuffled(positions, len(self._folder.train), self._seed)
        paths = [self._folder.train[index] for index in indices]
        seeds = [[self._seed, *b"views", position] for position in positions]
        return _stack_views(self._folder, paths, self._views, seeds)


def held_out_batch(
    folder: ImageFolder, paths: Sequence[Path], views: Sequence[ViewTransform]
) -> dict[str, Tensor]:
    """Load a batch like those of `ImageBatches`, with the same views of an image in every run.

    Args:
        folder: images that hold `paths`.
        paths: images of the batch.
        views: see `ImageBatches`.
    """
    return _stack_views(
        folder,
        paths,
        views,
        [[*b"held out", *path.name.encode(errors="surrogateescape")] for path in paths],
    )


def _stack_views(
    folder: ImageFolder,
    paths: Sequence[Path],
    views: Sequence[ViewTransform],
    seeds: Sequence[list[int]],
) -> dict[str, Tensor]:
    stacks = []
    for path, seed in zip(paths, seeds, strict=True):
        image = read_image(path, 3)
        with seeded(*seed):
            stacks.append(torch.stack([view(image) for view in views]))  # (V, C, H, W)
    labels = torch.tensor([folder.label(path) for path in paths])
    return {"views": torch.stack(stacks), "labels": labels}


@dataclass(frozen=True, eq=False)
class FrameRecording(Recording):
    """A recording whose windows each end at a frame; `images` holds the frame of each window."""

    images: tuple[Path, ...]

    def contents(self) -> Contents:
        """What determines histograms and frames, by name."""
        times = hashlib.sha256(self.windows[:, 1].tobytes()).hexdigest()
        return {
            **super().contents(),
            **{path.name: (path,) for path in self.images},
            "times of frames": times,
        }

    def image(self, index: int) -> NDArray[np.uint8]:
        """Frame (1, H, W) uint8 at the end of a window, resized to the size of the histograms."""
        size = (self.region.width, self.region.height)
        image = read_image(self.images[index], 1).resize(size, Image.Resampling.BILINEAR)
        return np.array(image, np.uint8)[None]


def pair_with_frames(recordings: Sequence[Recording], window_ms: float) -> list[FrameRecording]:
    """Cut recordings of DDD17 into windows that end at frames.

    Args:
        recordings: recordings, or parts of them; those without frames are ignored.
        window_ms: length of a window in ms.

    Returns:
        The recordings that have frames, with a window within the given part for each frame.

    Raises:
        UserError: if no recording has frames.
    """
    pairs = []
    length = window_us(window_ms)
    for recording in recordings:
        folder = recording.path / IMAGES
        if not len(recording) or not folder.is_dir():
            continue
        matches = {path: re.search(r"\d+$", path.stem) for path in folder.glob("[!.]*.png")}
        paths = {int(match[0]): path for path, match in matches.items() if match}
        times, *_ = read_image_times(recording.path)
        first = int(recording.windows[0, 0]) + length
        last = int(recording.windows[-1, 1])
        inside = np.flatnonzero((times >= first) & (times <= last))
        # Frame n has the time at index n - 1.
        indices = [index for index in inside.tolist() if index + 1 in paths]
        if indices:
            windows = np.stack([times[indices] - length, times[indices]], axis=1)
            images = tuple(paths[index + 1] for index in indices)
            pairs.append(
                FrameRecording(recording.name, recording.source, recording.region, windows, images)
            )
    if not pairs:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(
            where, f"no recording has images in {IMAGES}/", "give recordings of the DDD17 archive"
        )
    return pairs


def subsample(recordings: Sequence[FrameRecording], count: int) -> list[FrameRecording]:
    """Select windows, spread evenly over each recording.

    Args:
        recordings: recordings with frames.
        count: maximum number of windows; at least one of each recording remains.
    """
    parts = []
    limit = max(1, count // len(recordings))
    for recording in recordings:
        spaced = np.linspace(0, len(recording) - 1, min(limit, len(recording)))
        indices = np.unique(spaced.round().astype(int))
        images = tuple(recording.images[index] for index in indices.tolist())
        parts.append(replace(recording, windows=recording.windows[indices], images=images))
    return parts


class PairBatches(Dataset[dict[str, Tensor]]):
    """Batches of event histograms and frames, at random times.

    Item k holds `histograms` (B, 1, 2*bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8. Both
    get the same flip and zoom, sampled anew for each pair. Each epoch shows every pair once, in a
    different order.

    Args:
        recordings: recordings with frames, of one size.
        settings: settings of the pre-training.
        seed: seed of the order and of the augmentation.
        shard: index and number of the shards.
        augment: function of a histogram (1, 2*bins, H, W) and a random generator that changes only
            the histogram.
    """

    def __init__(
        self,
        recordings: Sequence[FrameRecording],
        settings: Pretraining,
        seed: int,
        shard: Shard = FULL_BATCH,
        augment: Augment = lambda histogram, _: histogram,
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._augment = augment
        self._rows = lanes_of(settings.batch_size, shard)
        self._pairs = [
            (recording, window) for recording in recordings for window in range(len(recording))
        ]

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        settings = self._settings
        positions = [step * settings.batch_size + row for row in self._rows]
        region = self._pairs[0][0].region
        size = (region.height, region.width)
        histograms = np.empty((len(positions), 1, 2 * settings.bins, *size), np.uint8)
        images = np.empty((len(positions), 1, 1, *size), np.uint8)
        for row, index in enumerate(shuffled(positions, len(self._pairs), self._seed)):
            recording, window = self._pairs[index]
            generator = np.random.default_rng([self._seed, *b"augmentation", positions[row]])
            flip_zoom = sample_flip_zoom(generator, settings.augmentation, *size)
            recording.fill(histograms[row], window, settings.binning, flip_zoom)
            histograms[row] = self._augment(histograms[row], generator)
            images[row, 0] = apply_maps(recording.image(window), flip_zoom, MIDDLE)
        return {"histograms": torch.from_numpy(histograms), "images": torch.from_numpy(images)}
