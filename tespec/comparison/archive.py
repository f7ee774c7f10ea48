"""Records of finished runs in one small file, `records.zip`, which is read as the folders that it holds.

Beside a folder `runs` of records, it holds `runs/NAME.json`, and `FOLDER/runs/NAME.json` of folders beside those.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.files import LARGEST, whole_file

ARCHIVE = "records.zip"
LARGEST_ARCHIVE = 1 << 28  # bytes of the file, and of all that is read out of it
MOST = 100_000  # files in it
SHOWN = 60  # letters of a name
INNER = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]*/)?runs/[^/\\\0]+\.json")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # no time of packing: the same records give the same bytes
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)
REMEDY = "take it from the repository again, or remove it"


def place_of(folder: Path) -> tuple[Path, str]:
    """The archive of a folder of records, whether there is one or not, and the folder's name within it."""
    own, outer = (where / ARCHIVE for where in (folder.parent, folder.parent.parent))
    if outer.exists() and not own.exists():
        return outer, f"{folder.parent.name}/{folder.name}/"
    return own, f"{folder.name}/"


def archived(folder: Path, pattern: str = "*") -> tuple[dict[str, str], list[str]]:
    """What an archive holds of a folder of records: texts by the names of records, and a line for all that is none.

    Of the records those are read whose names fit a pattern of the shell. Nothing is written, and what it takes
    of memory is bounded, whatever the archive says.
    """
    archive, inner = place_of(folder)
    if not archive.exists():
        return {}, []
    texts: dict[str, str] = {}
    problems: list[str] = []
    left = LARGEST_ARCHIVE
    try:
        with _opened(archive) as file:
            infos = sorted((info for info in file.infolist() if not info.is_dir()), key=lambda info: info.filename)
            counts = Counter(info.filename for info in infos)
            # Said once, not of each folder that is read.
            odd = [name for name in counts if not INNER.fullmatch(name)] if inner.count("/") == 1 else []
            if odd:
                others = f", nor are {len(odd) - 1} others" if odd[1:] else ""
                problems.append(_problem(archive, f"{odd[0][:SHOWN]!r} is at no place of a record{others}"))
            for info in infos:
                if not info.filename.startswith(inner) or not INNER.fullmatch(info.filename):
                    continue
                name = Path(info.filename).stem
                if not fnmatchcase(name, pattern):
                    continue
                left -= info.file_size
                try:
                    texts[name] = _text(file, info, counts[info.filename] > 1, left)
                except DAMAGED as error:
                    problems.append(_problem(archive / info.filename, f"cannot be read ({error})"))
    except DAMAGED as error:
        problems.append(_problem(archive, f"not a readable archive ({error})"))
    return texts, problems


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    if not archive.is_file():
        raise OSError("no regular file")
    if archive.stat().st_size > LARGEST_ARCHIVE:
        raise ValueError(f"larger than {LARGEST_ARCHIVE:,} bytes")
    with zipfile.ZipFile(archive) as file:
        if len(file.infolist()) > MOST:
            raise ValueError(f"more than {MOST:,} files")
        yield file


def _text(file: zipfile.ZipFile, info: zipfile.ZipInfo, twice: bool, left: int) -> str:
    if twice:
        raise ValueError("it is there twice")
    if info.compress_type not in METHODS:
        raise ValueError("compressed in another way than by deflating")
    if info.file_size > LARGEST or left < 0:
        raise ValueError(f"larger than {LARGEST:,} bytes, or beyond the {LARGEST_ARCHIVE:,} that are read")
    return file.read(info).decode("utf-8")


def _problem(where: Path, what: str) -> str:
    return str(UserError(where, what, REMEDY))


def holds_records(results: Path) -> bool:
    """Whether a folder of results is there: as a folder, or within an archive beside it."""
    return results.is_dir() or bool(archived(results / "runs")[0])


def write_archive(path: Path, texts: Mapping[str, str]) -> Path:
    """Write an archive in one step; the same texts give the same bytes.

    Args:
        path: of the archive.
        texts: by place within it, such as "runs/NAME.json".
    """
    with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w") as file:
        for place in sorted(texts):
            assert INNER.fullmatch(place), place
            info = zipfile.ZipInfo(place, LONG_AGO)
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            file.writestr(info, texts[place], compresslevel=9)
    return path
