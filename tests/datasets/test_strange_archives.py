from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import resource
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tespec.core.errors import UserError
from tespec.datasets.extract import extract


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


def header(name: str, size: int, kind: bytes) -> bytes:
    return member(name, size, kind).tobuf(tarfile.GNU_FORMAT)


def large_facts(kind: bytes) -> bytes:
    return gzip.compress(header("a", 300 << 20, kind) + b"\0" * (300 << 20), 1)


def bomb(where: Path) -> bytes:
    """A packed tar whose first member, which has to be unpacked to be passed, has 3 GB."""
    packed = zlib_zeros(3 << 30)
    return gzip.compress(header("a", 3 << 30, tarfile.REGTYPE), 1) + packed


def zlib_zeros(size: int) -> bytes:
    return gzip.compress(bytes(1 << 26), 1) * (size >> 26)


def clash() -> bytes:
    return tar_of((member("a", 1), b"x"), (member("a/b", 1), b"x"))


def sparse() -> bytes:
    info = member("a", 0)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99"}
    return tar_of((info, b""))


def deep() -> bytes:
    return tar_of((member("/".join(["a" * 100] * 60), 1), b"x"))


def lzma_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", bytes(range(256)) * 20)
    damaged = bytearray(content.getvalue())
    damaged[60:90] = b"\xff" * 30
    return bytes(damaged)


def torn(pack: Callable[[bytes], bytes]) -> bytes:
    packed = bytearray(pack(tar_of((member("a", 99_999), random.Random(0).randbytes(99_999)))))
    for place in range(len(packed) // 2, len(packed)):
        packed[place] ^= 0x55
    return bytes(packed)


def empty_sparse_map() -> bytes:
    return header("a", 5000, tarfile.GNUTYPE_SPARSE) + b"\xff" * 512


STRANGE: dict[str, Callable[[], bytes]] = {
    "facts of 300 MB": lambda: large_facts(tarfile.XHDTYPE),
    "a long name of 300 MB": lambda: large_facts(tarfile.GNUTYPE_LONGNAME),
    "file and folder of one name": clash,
    "sparse": sparse,
    "old sparse": empty_sparse_map,
    "names beyond the system's": deep,
    "torn LZMA in a zip": lzma_zip,
    "torn gzip": lambda: torn(gzip.compress),
    "torn bzip2": lambda: torn(bz2.compress),
    "torn xz": lambda: torn(lzma.compress),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_is_refused_in_one_line_with_nothing_left(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.tar").write_bytes(STRANGE[kind]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as raised:
        extract(tmp_path / "a.tar", tmp_path / "out")
    assert len(str(raised.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_packed_tar_is_not_unpacked_to_learn_that_it_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    plain = gzip.GzipFile.read

    def counted(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal read
        content = plain(self, size)
        read += len(content)
        return content

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    (tmp_path / "a.tar.gz").write_bytes(bomb(tmp_path))
    with pytest.raises(UserError, match="or more files of 3,221,225,472 or more bytes"):
        extract(tmp_path / "a.tar.gz", tmp_path / "out")
    assert 0 < read < 1 << 20
