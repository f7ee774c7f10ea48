import multiprocessing
import struct
import zipfile
import zlib

import numpy as np
import pytest
from ddd17_copies import png

from tespec.core.errors import UserError
from tespec.datasets.labels import MaskFiles, mask_names

COUNT, HEIGHT, WIDTH = 6, 40, 56


def mask(number):
    return np.random.default_rng(number).integers(0, 6, (HEIGHT, WIDTH), np.uint8)


def write_zip(path, extra=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(1, COUNT + 1):
            archive.writestr(f"segmentation_masks/segmentation_{number:08d}.png", png(mask(number)))
        for name, content in extra:
            archive.writestr(name, content)
    return path


def open_masks(place):
    return MaskFiles(place, tuple(mask_names(place).values()), HEIGHT, WIDTH, 6)


def test_other_files_of_an_archive_are_passed_over(tmp_path):
    extra = [("__MACOSX/segmentation_masks/._segmentation_00000001.png", b"x"), ("segmentation_masks/notes.txt", b"x")]
    names = mask_names(write_zip(tmp_path / "masks.zip", extra))
    assert list(names) == [1, 2, 3, 4, 5, 6]
    assert names[2] == "segmentation_masks/segmentation_00000002.png"


def test_a_file_too_large_for_a_mask_is_not_read(tmp_path):
    extra = [("segmentation_masks/segmentation_00000009.png", bytes((1 << 24) + 1))]
    masks = open_masks(write_zip(tmp_path / "masks.zip", extra))
    with pytest.raises(UserError, match=r"_00000009.png: has 16777217 bytes, more than any mask"):
        masks[6]


def test_a_vast_image_in_a_small_file_is_not_decoded(tmp_path):
    small = png(np.zeros((1, 1), np.uint8))
    start = small.index(b"IHDR")
    for side, message in ((8000, "has 8000x8000 px instead of 56x40"), (60_000, "not a readable PNG")):
        header = b"IHDR" + struct.pack(">II", side, side) + small[start + 12 : start + 17]
        vast = small[:start] + header + struct.pack(">I", zlib.crc32(header)) + small[start + 21 :]
        (tmp_path / "m_00000001.png").write_bytes(vast)
        with pytest.raises(UserError, match=message):
            open_masks(tmp_path)[0]


def png_of(depth, colour, row, palette=b""):
    """A PNG of 4x1 px with these bytes of pixels (PNG specification, sections 5.3 and 11.2)."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, depth, colour, 0, 0, 0))
    colours = chunk(b"PLTE", palette) if palette else b""
    return b"\x89PNG\r\n\x1a\n" + head + colours + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")


GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6


@pytest.mark.parametrize(
    ("depth", "colour", "row", "classes"),
    [
        (1, GREY, b"\x50", [0, 1, 0, 1]),
        (2, GREY, b"\x1b", [0, 1, 2, 3]),
        (4, GREY, b"\x03\x45", [0, 3, 4, 5]),
        (8, GREY, b"\0\xff\5\3", [0, 255, 5, 3]),
        (2, PALETTE, b"\x1b", [0, 1, 2, 3]),
        (8, PALETTE, b"\0\1\2\3", [0, 1, 2, 3]),
        (16, GREY, bytes(8), "mode I;16"),
        (8, RGB, bytes(12), "mode RGB,"),
        (8, GREY_ALPHA, bytes(8), "mode LA"),
        (8, RGB_ALPHA, bytes(16), "mode RGBA"),
    ],
)
def test_masks_are_the_numbers_in_the_file_or_refused(tmp_path, depth, colour, row, classes):
    palette = bytes(range(200, 212)) if colour == PALETTE else b""
    (tmp_path / "m_00000001.png").write_bytes(png_of(depth, colour, row, palette))
    masks = MaskFiles(tmp_path, ("m_00000001.png",), 1, 4, 6)
    if isinstance(classes, list):
        assert masks[0].dtype == np.uint8
        assert masks[0].tolist() == [classes]
    else:
        with pytest.raises(UserError, match=rf"m_00000001\.png: is an image of {classes}"):
            masks[0]


def read_many_times(place, seed, wrong):
    masks, order = open_masks(place), np.random.default_rng(seed)
    for index in order.integers(0, COUNT, 600).tolist():
        if not np.array_equal(masks[index], mask(index + 1)):
            wrong.put(index)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on, where other tests left threads
def test_forked_workers_read_one_archive_at_the_same_time(tmp_path):
    place = write_zip(tmp_path / "masks.zip")
    np.testing.assert_array_equal(open_masks(place)[0], mask(1))
    context = multiprocessing.get_context("fork")
    wrong = context.Queue()
    workers = [context.Process(target=read_many_times, args=(place, seed, wrong)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert wrong.empty()


def damaged_copies(content, rng, count):
    for _ in range(count // 2):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        yield bytes(flipped)
        yield content[: rng.integers(len(content))]


def message_of_reading(place):
    """What is said about masks that cannot be read; "" if all of them can."""
    try:
        masks = open_masks(place)
        masks.checksums()
        read = [masks[index] for index in range(len(masks))]
    except UserError as error:
        return str(error)
    assert all(each.shape == (HEIGHT, WIDTH) for each in read)
    return ""


@pytest.mark.parametrize("form", ["zip", "png"])
def test_damage_is_refused_in_one_line_or_harmless(tmp_path, form):
    content = write_zip(tmp_path / "masks.zip").read_bytes() if form == "zip" else png(mask(1))
    messages = []
    for number, damaged in enumerate(damaged_copies(content, np.random.default_rng(0), 600)):
        place = tmp_path / f"{number}.zip"
        if form == "zip":
            place.write_bytes(damaged)
        else:
            place.mkdir()
            (place / "m_00000001.png").write_bytes(damaged)
        messages.append(message_of_reading(place))
    assert sum(map(bool, messages)) > 400
    assert not any("\n" in message for message in messages)


def test_neither_a_gigantic_picture_nor_a_device_is_read(tmp_path):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "a_00000001.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + bytes(100))
    (tmp_path / "a_00000002.png").symlink_to("/dev/zero")
    masks = open_masks(tmp_path)
    with pytest.raises(UserError, match=r"a_00000001.png: not a readable PNG"):
        masks[0]
    with pytest.raises(UserError, match=r"a_00000002.png: no such file"):
        masks[1]
