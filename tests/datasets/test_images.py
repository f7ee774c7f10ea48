"""Batches of images, and of events paired with images: epochs, shards, normalisation, views and
unusual files.
"""

import os
import random
import shutil
from collections import Counter
from dataclasses import replace

import tespec.core.compat  # noqa: F401  # before torchvision

import numpy as np
import pytest
import torch
from ddd17_copies import png_of
from PIL import Image
from torchvision.transforms import v2

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets import images
from tespec.datasets.folder import split_train_val
from tespec.datasets.images import (
    held_out_batch,
    normalise,
    open_images,
    pair_with_frames,
    read_image,
    seeded,
)
from tespec.pretraining.method import open_pretraining

VIEW = v2.Compose([v2.RandomResizedCrop((16, 24)), v2.ColorJitter(0.4), v2.PILToTensor()])


def image_steps(world, root, batch, shard=(0, 1)):
    for number in range(8):
        path = root / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 30), np.uint8)).save(
            path
        )
    folder = open_images(root)
    return images.ImageBatches(folder, [VIEW], batch, 0, shard), len(folder.train)


def pair_steps(world, root, batch, shard=(0, 1)):
    settings = replace(pretraining_settings("ecdp", "sample"), batch_size=batch)
    found = pair_with_frames(
        split_train_val(world / "ddd17", settings.window_ms, settings.downsample).train,
        settings.window_ms,
    )
    return images.PairBatches(found, settings, 0, shard), sum(map(len, found))


KINDS = pytest.mark.parametrize("make", [image_steps, pair_steps])


@KINDS
@pytest.mark.parametrize("batch", [2, 5])
def test_each_epoch_shows_every_image_once_in_an_order_of_its_own(
    tiny_world, tmp_path, monkeypatch, make, batch
):
    read, shown = images.read_image, []
    monkeypatch.setattr(
        images, "read_image", lambda path, channels: shown.append(path) or read(path, channels)
    )
    steps, count = make(tiny_world, tmp_path, batch)
    for step in range(3 * count // batch):
        steps[step]
    epochs = [shown[first : first + count] for first in range(0, len(shown) - count + 1, count)]
    assert len(epochs) >= 2
    assert all(set(Counter(epoch).values()) == {1} for epoch in epochs)
    assert epochs[0] != epochs[1]


@KINDS
def test_a_batch_does_not_depend_on_what_was_asked_for_before_and_shards_make_it(
    tiny_world, tmp_path, make
):
    steps, _ = make(tiny_world, tmp_path, 5)
    batch, shards = (
        steps[3],
        [make(tiny_world, tmp_path, 5, (number, 2))[0][3] for number in range(2)],
    )
    again = [make(tiny_world, tmp_path, 5)[0][step] for step in (0, 9, 3)][-1]
    for other in (again, {name: torch.cat([shard[name] for shard in shards]) for name in batch}):
        torch.testing.assert_close(other, batch, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(images.GREY_MEAN, images.GREY_DEVIATION), (images.MEAN, images.DEVIATION)],
)
def test_bytes_become_what_a_network_sees(mean, deviation):
    mean, deviation = (np.reshape(each, (-1, 1, 1)) for each in (mean, deviation))
    pixels = np.random.default_rng(0).integers(0, 256, (2, len(mean), 20, 30), np.uint8)
    seen = normalise(torch.from_numpy(pixels))
    np.testing.assert_allclose(seen, (pixels / 255 - mean) / deviation, rtol=1e-5, atol=1e-6)
    assert normalise(seen) is seen


def test_frames_are_found_by_the_number_at_the_end_of_their_names(tiny_world, tmp_path):
    """As in uzh-rpg/ess (datasets/ddd17_events_loader.py): imgs/img_<number>.png, or <number>.png
    of 10 digits.
    """
    root = shutil.copytree(tiny_world / "ddd17" / "dir0", tmp_path / "drive")
    before = pair_with_frames(split_train_val(root, 50, Downsample(1, "nearest")).train, 50)
    for path in (root / "imgs").glob("img_*.png"):
        path.rename(path.with_name(f"{int(path.stem[4:]):010d}.png"))
    for name in ("mean.png", "._0000000001.png"):  # macOS adds the latter
        (root / "imgs" / name).touch()
    after = pair_with_frames(split_train_val(root, 50, Downsample(1, "nearest")).train, 50)
    assert [int(path.stem) for path in after[0].images] == [
        int(path.stem[4:]) for path in before[0].images
    ]


def write_images(root, *names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * number).save(root / name)


FLAT = {
    "ImageNet's flat val": (
        ["train/n01/0.png", "train/n02/1.png", "val/n01_2.png"],
        ["n01", "n02"],
        ["val"],
    ),
    "flat Valid": (
        ["Training/n01/0.png", "Training/n02/1.png", "Valid/2.png"],
        ["n01", "n02"],
        ["Valid"],
    ),
    "flat splits": (
        ["train/0.png", "train/1.png", "validation/2.png"],
        [],
        ["train", "validation"],
    ),
    "flat val among classes": (["n01/0.png", "n02/1.png", "val/2.png"], ["n01", "n02"], ["val"]),
    "in the folder itself": (["0.png", "n01/1.png", "n02/2.png"], ["n01", "n02"], ["."]),
    "a class called train": (
        ["train/0.png", "bus/1.png", "car/2.png"],
        ["bus", "car", "train"],
        [],
    ),
    "a flat test": (
        ["train/n01/0.png", "train/n02/1.png", "train/n02/2.png", "Test/3.png"],
        ["n01", "n02"],
        [],
    ),
}


@pytest.mark.parametrize(("names", "classes", "flat"), FLAT.values(), ids=FLAT)
def test_flat_folders_of_images_are_no_classes(tmp_path, names, classes, flat):
    write_images(tmp_path, *names)
    folder = open_images(tmp_path)
    assert (
        list(folder.classes),
        [path.relative_to(tmp_path).as_posix() for path in folder.flat],
    ) == (classes, flat)
    assert not [path for path in (*folder.train, *folder.held_out) if "Test" in path.parts]
    labels = {folder.label(path) for path in (*folder.train, *folder.held_out)}
    assert labels == {*range(len(classes)), *([-1] if flat else [])}


def test_images_without_a_class_serve_methods_without_labels_alone(tmp_path):
    names = [f"train/n0{number % 2}/{number}.png" for number in range(16)]
    write_images(tmp_path, *names, *(f"val/{number}.png" for number in range(8)))
    imagenet, moby = (
        pretraining_settings(method, "sample", [], "swin") for method in ("imagenet", "moby")
    )
    assert (
        sum(
            counts.get("held_out", 0)
            for counts in open_pretraining(moby, tmp_path).recordings().values()
        )
        == 8
    )
    task = open_pretraining(imagenet, tmp_path)
    with pytest.raises(
        UserError, match=r"val: holds images outside of folders of classes; sort its images into a"
    ):
        task.method.from_data(task)


def numbers():
    return random.random(), float(np.random.random()), torch.rand(1).item()  # noqa: NPY002


def test_what_libraries_draw_follows_from_the_seed_and_nothing_else_moves():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    with seeded(3, 4):
        first = numbers()
    after = numbers()
    with seeded(3, 4):
        assert numbers() == first
    with seeded(3, 5):
        assert numbers() != first
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    assert numbers() == after


def test_views_of_an_image_are_the_same_each_time_and_differ_from_each_other(tmp_path):
    image_steps(None, tmp_path, 2)
    folder = open_images(tmp_path)
    paths = [*folder.train, *folder.held_out]
    batch, again = (
        held_out_batch(folder, paths, [VIEW, VIEW]),
        held_out_batch(folder, paths[1:], [VIEW, VIEW]),
    )
    assert batch["views"].shape == (8, 2, 3, 16, 24)
    torch.testing.assert_close(
        again, {name: value[1:] for name, value in batch.items()}, rtol=0, atol=0
    )
    assert not torch.equal(batch["views"][:, 0], batch["views"][:, 1])


PAGE = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    "content", [PAGE, png_of(8, 0, b"", size=(60_000, 60_000)), b"", b"GIF89a" + bytes(99)]
)
def test_neither_programs_nor_bombs_nor_images_of_more_than_8_bits_are_read(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=r"a.png: not a readable image; copy it again or remove it"):
        read_image(tmp_path / "a.png", 3)
    (tmp_path / "link.png").symlink_to("gone.png")
    os.mkfifo(tmp_path / "pipe")  # reading it would block forever
    (tmp_path / "pipe.png").symlink_to("pipe")
    folder = open_images(tmp_path)
    paths = sorted((*folder.train, *folder.held_out))
    assert [path.name for path in paths] == ["a.png", "link.png", "pipe.png"]
    for path in paths[1:]:
        with pytest.raises(UserError, match=f"{path.name}: not a readable image"):
            read_image(path, 3)
    Image.new("I;16", (2, 2), 700).save(tmp_path / "a.png")
    with pytest.raises(
        UserError, match=r"a.png: is an image of mode I;16, more than 8 bits per pixel"
    ):
        read_image(tmp_path / "a.png", 1)


@pytest.mark.parametrize(
    ("mode", "colour", "grey"),
    [
        ("1", 1, 255),
        ("L", 7, 7),
        ("LA", (7, 255), 7),
        ("RGB", (7, 7, 7), 7),
        ("RGBA", (7, 7, 7, 255), 7),
        ("P", 7, 7),
    ],
)
def test_images_of_every_mode_keep_their_grey(tmp_path, mode, colour, grey):
    image = Image.new(mode, (2, 2), colour)
    if mode == "P":
        image.putpalette(bytes(np.repeat(np.arange(256, dtype=np.uint8), 3)))
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 1).getpixel((1, 1)) == grey
    assert read_image(tmp_path / "a.png", 3).getpixel((0, 0)) == (grey,) * 3


def test_names_need_not_be_utf_8(tmp_path):
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / os.fsdecode(b"\xff%d.png" % number))
    folder = open_images(tmp_path)
    assert held_out_batch(folder, folder.held_out, [v2.PILToTensor()])["views"].shape[0] == 1
