"""Extracts downloaded archives without trusting them: nothing leaves the folder, and sizes have limits."""

from __future__ import annotations

import errno
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from tespec.core.errors import UserError

MEMBERS = 5_000_000  # 1Mpx and DSEC have fewer files than this by far
RATIO = 200  # of extracted to packed size; PNG, HDF5 and event files pack far less
BLOCK = 1 << 20  # bytes
LONGEST = 200  # bytes of a name
LARGEST_NAMES = 1 << 16  # bytes of what stands before a member of a tar archive: its long name and other facts
DAMAGED = (
    ValueError,
    LookupError,
    OverflowError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
# Of errors of the system, those that a damaged or hostile archive causes; a full disk is none of them.
ITS_FAULT = (None, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
FACTS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Member:
    """One file of an archive: its path in it, its size in bytes, and how to open it."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


def extract(archive: Path, folder: Path, crc32: str | None = None, progress: Progress | None = None) -> int:
    """Extract a `.zip` or `.tar` archive (compressed or not) into a new folder, which appears when it is whole.

    Args:
        archive: the file.
        folder: where its files go; must not exist.
        crc32: what the archive's CRC-32 must be, in hexadecimal.
        progress: called with the bytes extracted and all there are.

    Returns:
        Number of files.

    Raises:
        UserError: the archive is damaged, has another checksum, wants to write outside of the folder, holds links or
            devices, is too large for the disk, or unpacks to more than is plausible.
    """
    if folder.exists():
        raise UserError(folder, "exists already", "name a new folder")
    if crc32 is not None and (found := _crc32(archive)) != int(crc32, 16):
        raise UserError(archive, f"has the CRC-32 {found:08x}, not {crc32}", "download it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with _members(archive) as members:
            _check(archive, members, folder.parent)
            _write(members, unfinished, progress or (lambda done, total: None))
        unfinished.replace(folder)
    except DAMAGED as error:
        raise UserError(archive, f"damaged ({str(error)[:200]})", "download it again") from error
    except OSError as error:
        if error.errno not in ITS_FAULT:
            raise
        said = error.strerror or str(error)[:200]
        raise UserError(archive, f"damaged ({said})", "download it again") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return len(members)


@contextmanager
def _members(archive: Path) -> Iterator[list[Member]]:
    if not archive.is_file():
        raise UserError(archive, "no such file", "check the path")
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield list(_limited(archive, _of_zip(archive, opened)))
        return
    try:
        opened_tar = tarfile.open(archive, tarinfo=_CautiousTarInfo)  # noqa: SIM115  # closed below
    except (tarfile.ReadError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(archive, "neither a zip nor a tar archive", "give one that was downloaded") from error
    with opened_tar:
        yield list(_limited(archive, _of_tar(archive, opened_tar)))


class _CautiousTarInfo(tarfile.TarInfo):
    """Python's, which reads what stands before a member whole, whatever size it claims."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _CautiousTarInfo:
        found = super().frombuf(buf, encoding, errors)
        if found.type in FACTS and found.size > LARGEST_NAMES:
            raise EOFError(f"{found.size:,} bytes before a member")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise EOFError("a sparse member")
        return found


def _limited(archive: Path, members: Iterator[Member]) -> Iterator[Member]:
    """The members, as long as all of them so far are plausible: to pass one of a packed tar is to unpack it."""
    packed, total = archive.stat().st_size, 0
    for count, member in enumerate(members, start=1):
        total += member.size
        if count > MEMBERS or total > RATIO * packed:
            what = f"would unpack {packed:,} bytes to {count:,} or more files of {total:,} or more bytes"
            raise UserError(archive, what, "do not trust this archive")
        yield member


def _of_zip(archive: Path, opened: zipfile.ZipFile) -> Iterator[Member]:
    for each in opened.infolist():
        kind = each.external_attr >> 16 & 0o170000
        if kind not in (0, 0o100000, 0o040000):
            raise _refused(archive, each.filename, "is a link or a device")
        if not each.is_dir():
            yield Member(_inside(archive, each.filename), each.file_size, lambda each=each: opened.open(each))  # type: ignore[misc]


def _of_tar(archive: Path, opened: tarfile.TarFile) -> Iterator[Member]:
    for each in opened:
        if each.isdir():
            continue
        if not each.isreg():
            raise _refused(archive, each.name, "is a link or a device")
        if each.issparse():
            raise _refused(archive, each.name, "has holes")
        yield Member(_inside(archive, each.name), each.size, lambda each=each: opened.extractfile(each))  # type: ignore


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name or not path.parts:
        raise _refused(archive, name, "would be written outside of the folder")
    if max(len(part.encode(errors="replace")) for part in path.parts) > LONGEST:
        raise _refused(archive, f"{name[:40]}...", "has a name that is too long")
    return path


def _refused(archive: Path, name: str, what: str) -> UserError:
    return UserError(archive, f"its member {name!r} {what}", "do not trust this archive")


def _check(archive: Path, members: list[Member], place: Path) -> None:
    total = sum(member.size for member in members)
    if len({member.path for member in members}) < len(members):
        raise UserError(archive, "holds two files of one name", "do not trust this archive")
    free = shutil.disk_usage(place).free
    if total > free:
        raise UserError(place, f"has {free:,} bytes free, the archive's files need {total:,}", "name another folder")


def _write(members: list[Member], folder: Path, progress: Progress) -> None:
    total, done = sum(member.size for member in members), 0
    folder.mkdir()
    for member in members:
        target = folder / member.path
        target.parent.mkdir(parents=True, exist_ok=True)
        left = member.size
        with member.open() as source, target.open("wb") as file:
            while block := source.read(min(BLOCK, left + 1)):
                left -= len(block)
                if left < 0:
                    raise zipfile.BadZipFile(f"{member.path} is longer than it says")
                file.write(block)
                done += len(block)
        if left:
            raise zipfile.BadZipFile(f"{member.path} is shorter than it says")
        progress(done, total)


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return value
