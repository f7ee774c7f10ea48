"""Archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
from fuzzing import damage
from harm import Rng
from target import Target


def write_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in ("data/a.txt", "data/b.txt"):
            archive.writestr(name, "x" * 200, compress_type=zipfile.ZIP_DEFLATED)
    return folder / "a.zip"


def write_tar(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("data/a.txt", "data/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 200
            archive.addfile(member, io.BytesIO(b"x" * 200))
    return folder / "a.tar"


NAMES = (
    "../out.txt",
    "/tmp/out-of-archive.txt",
    "a/../../out.txt",
    "c:\\x",
    "a\x00b",
    "",
    ".",
    "x" * 5000,
    "data/a.txt",
)


def harm_archive(path: Path, rng: Rng) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        _harm_archive(path, rng)


def _harm_archive(path: Path, rng: Rng) -> None:
    name = NAMES[rng.integers(len(NAMES))]
    kind = rng.integers(6)
    if kind == 0 and path.suffix == ".zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(zipfile.ZipInfo(name or "e"), "y" * int(rng.integers(0, 3000)))
    elif kind in (0, 1) and path.suffix == ".tar":
        with tarfile.open(path, "a") as archive:
            member = tarfile.TarInfo(name)
            member.type = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE][
                rng.integers(5)
            ]
            member.linkname = NAMES[rng.integers(len(NAMES))]
            archive.addfile(member)
    elif kind == 1:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", b"\0" * 3_000_000)
    else:
        damage(path, rng)


def read_archive_file(path: Path) -> None:
    from tespec.datasets.extract import extract

    extract(path, path.parent / "extracted")
    places = (path.parent, path.parent.parent, Path("/tmp"))
    outside = [place / name for place in places for name in ("out.txt", "out-of-archive.txt")]
    assert not any(each.exists() for each in outside), "escaped"


def write_packed_tar(folder: Path) -> Path:
    with tarfile.open(folder / "a.tgz", "w:gz") as archive:
        for name in ("data/a.txt", "data/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 3000
            archive.addfile(member, io.BytesIO(bytes(range(250)) * 12))
    return folder / "a.tgz"


def harm_packed(path: Path, rng: Rng) -> None:
    """Damage the archive before it is packed, and sometimes after."""
    plain = path.with_suffix(".tar")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    harm_archive(plain, rng)
    pack = (gzip.compress, bz2.compress, lzma.compress)[rng.integers(3)]
    path.write_bytes(pack(plain.read_bytes()))
    plain.unlink()
    if rng.random() < 0.4:
        damage(path, rng)


def write_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", labels=np.zeros(500, "<i8"), first=np.arange(9))
    return folder / "a.npz"


def read_npz(path: Path) -> None:
    from tespec.events.readers.arrays import load_arrays

    load_arrays(path, ("labels", "first"))


def harm_npz(path: Path, rng: Rng) -> None:
    """Damage the bytes, or put a lying array into an archive that is whole."""
    if rng.random() < 0.5:
        damage(path, rng)
        return
    array = path.with_suffix(".npy")
    np.save(array, np.arange(50))
    for _ in range(3):
        damage(array, rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", array.read_bytes())
        archive.writestr("first.npy", array.read_bytes())
    array.unlink()


ARCHIVES: dict[str, Target] = {
    "zip": Target(write_zip, read_archive_file, harm_archive),
    "tar": Target(write_tar, read_archive_file, harm_archive),
    "packed tar": Target(write_packed_tar, read_archive_file, harm_packed),
    "npz": Target(write_npz, read_npz, harm_npz),
}
