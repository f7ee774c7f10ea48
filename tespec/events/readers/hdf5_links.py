"""Finds a dataset of an HDF5 file without leaving the file: a stranger's file must not have another one read."""

from __future__ import annotations

from pathlib import Path

import h5py

from tespec.core.errors import UserError

LINKS = 8  # that lead from one to the next


def found_within(path: Path, file: h5py.File, name: str, links: int = LINKS) -> h5py.Dataset | h5py.Group | None:
    """What `name` stands for in a file, None if nothing does.

    Raises:
        UserError: it leads to another file, or goes in circles.
    """
    place: h5py.Dataset | h5py.Group = file
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if not isinstance(place, h5py.Group):
            return None
        link = place.get(part, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            if not links:
                raise UserError(path, f"{name} is a link that leads nowhere", "copy the file again")
            before = "" if link.path.startswith("/") else "/".join(parts[:number]) + "/"
            return found_within(path, file, "/".join([before + link.path, *parts[number + 1 :]]), links - 1)
        if not isinstance(link, h5py.HardLink):
            raise UserError(path, f"{name} lies in another file", "give a file that holds its data itself")
        place = place[part]
    return place


def require_own_data(path: Path, name: str, found: h5py.Dataset) -> None:
    """Refuse a dataset whose values lie in other files, as virtual and external ones do.

    Raises:
        UserError: they do.
    """
    if found.is_virtual or found.id.get_create_plist().get_external_count():
        raise UserError(path, f"{name} lies in other files", "give a file that holds its data itself")
