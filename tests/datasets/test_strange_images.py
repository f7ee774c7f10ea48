import struct
import zlib

import pytest
from PIL import Image

from tespec.core.errors import UserError
from tespec.datasets.images import read_image

PAGE = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


def png_header(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + bytes(100)


@pytest.mark.parametrize(
    "content", [PAGE, png_header(60_000, 60_000), png_header(10_000, 9_999), b"", b"GIF89a" + bytes(99)]
)
def test_neither_programs_nor_bombs_are_images(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=r"a.png: not a readable image"):
        read_image(tmp_path / "a.png", 3)


@pytest.mark.parametrize(
    ("image", "grey"),
    [
        (Image.new("1", (2, 2), 1), 255),
        (Image.new("L", (2, 2), 7), 7),
        (Image.new("LA", (2, 2), (7, 255)), 7),
        (Image.new("RGB", (2, 2), (7, 7, 7)), 7),
        (Image.new("RGBA", (2, 2), (7, 7, 7, 255)), 7),
        (Image.new("RGB", (2, 2), (7, 7, 7)).quantize(4), 7),
        (Image.new("I;16", (2, 2), 700), None),
    ],
    ids=lambda value: getattr(value, "mode", ""),
)
def test_images_of_every_mode_keep_their_grey_or_are_refused(tmp_path, image, grey):
    image.save(tmp_path / "a.png")
    if grey is None:
        with pytest.raises(UserError, match=r"a.png: is an image of mode I;16, more than 8 bits a pixel"):
            read_image(tmp_path / "a.png", 1)
    else:
        assert read_image(tmp_path / "a.png", 1).getpixel((1, 1)) == grey
        assert read_image(tmp_path / "a.png", 3).getpixel((0, 0)) == (grey,) * 3
