import io
import stat
import tarfile
import zipfile
import zlib

import pytest

from tespec.core.errors import UserError
from tespec.datasets.extract import extract

FILES = {"gen1/train/a_td.dat": b"events", "gen1/train/a_bbox.npy": b"boxes" * 100, "gen1/leer.txt": b""}


def zip_of(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar_of(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_come_out_as_they_went_in(tmp_path):
    archives = (
        zip_of(tmp_path / "a.zip", FILES),
        tar_of(tmp_path / "a.tar.gz", FILES.items()),
        tar_of(tmp_path / "a.tar", FILES.items(), "w"),
    )
    for number, archive in enumerate(archives):
        seen = []
        target = tmp_path / "Daten ü" / str(number)
        assert extract(archive, target, progress=lambda *state, seen=seen: seen.append(state)) == len(FILES)
        assert content_of(target) == FILES
        assert seen[-1] == (506, 506)


def link(name, kind=tarfile.SYMTYPE, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def linking_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")


EVIL = {
    "above": (lambda path: zip_of(path, {"../evil": b"x"}), "would be written outside"),
    "above in the middle": (lambda path: zip_of(path, {"a/../../evil": b"x"}), "would be written outside"),
    "absolute": (lambda path: tar_of(path, [("/tmp/evil", b"x")]), "would be written outside"),
    "backslash": (lambda path: tar_of(path, [("..\\evil", b"x")]), "would be written outside"),
    "link": (lambda path: tar_of(path, [(link("a"), b"")]), "is a link or a device"),
    "hard link": (lambda path: tar_of(path, [(link("a", tarfile.LNKTYPE), b"")]), "is a link or a device"),
    "device": (lambda path: tar_of(path, [(link("a", tarfile.CHRTYPE), b"")]), "is a link or a device"),
    "link in a zip": (linking_zip, "is a link or a device"),
    "bomb": (lambda path: zip_of(path, {"zeros": bytes(1 << 22)}), "would unpack"),
    "twice": (lambda path: tar_of(path, [("a", b"1"), ("a", b"2")]), "two files of one name"),
    "no archive": (lambda path: path.write_bytes(b"hello"), "neither a zip nor a tar archive"),
    "torn": (lambda path: path.write_bytes(zip_of(path, FILES).read_bytes()[:200]), "neither a zip nor a tar"),
}


@pytest.mark.parametrize("kind", EVIL)
def test_what_cannot_be_trusted_is_refused_and_leaves_nothing(tmp_path, kind):
    make, message = EVIL[kind]
    make(tmp_path / "archive")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=message) as caught:
        extract(tmp_path / "archive", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_inside_leaves_nothing(tmp_path):
    path = zip_of(tmp_path / "a.zip", {"numbers": bytes(range(256)) * 40})
    content = bytearray(path.read_bytes())
    content[80] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged .*download it again"):
        extract(path, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [path]


def test_checksum_and_existing_folder(tmp_path):
    path = zip_of(tmp_path / "a.zip", FILES)
    with pytest.raises(UserError, match=r"has the CRC-32 [0-9a-f]{8}, not 00000001"):
        extract(path, tmp_path / "out", crc32="00000001")
    extract(path, tmp_path / "out", crc32=f"{zlib.crc32(path.read_bytes()):08x}")
    with pytest.raises(UserError, match="out: exists already"):
        extract(path, tmp_path / "out")
