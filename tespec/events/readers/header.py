"""The text header of Prophesee files, lines that begin with `%`: its fields, and the sensor that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tespec.core.errors import UserError

LONGEST = 1 << 16  # bytes; real headers have a few hundred


class Header(NamedTuple):
    """Fields of the header by lower-case name, and the offset of the first byte after it."""

    fields: dict[str, str]
    size: int


def read_header(path: Path) -> Header:
    """Header of a `.dat` or `.raw` file.

    Raises:
        UserError: the file cannot be read, is empty, has no header, or one without end.
    """
    try:
        with path.open("rb") as file:
            head = file.read(LONGEST)
    except OSError as error:
        raise UserError(path, f"cannot be read ({error.strerror})", "check the path") from error
    if not head:
        raise UserError(path, "the file is empty", "copy it again")
    if head[:1] != b"%":
        raise UserError(path, "does not begin with a header (lines that begin with %)", "give a Prophesee recording")
    fields: dict[str, str] = {}
    offset = 0
    while head[offset : offset + 1] == b"%":
        end = head.find(b"\n", offset)
        if end < 0:
            raise UserError(path, "its header does not end", "copy the file again")
        line = head[offset + 1 : end].decode("ascii", "replace").strip()
        offset = end + 1
        if line == "end":
            break
        name, _, value = line.partition(" ")
        fields[name.lower()] = value.strip()
    return Header(fields, offset)


def sensor_size(header: Header) -> tuple[int, int] | None:
    """(height, width) in px that the header names, in any of the three ways that recorders use, or by its camera."""
    fields = header.fields
    # Of a number without end Python makes none.
    if all(re.fullmatch(r"\d{1,9}", fields.get(side, "")) for side in ("height", "width")):
        return int(fields["height"]), int(fields["width"])
    geometry = re.fullmatch(r"(\d{1,9})x(\d{1,9})", fields.get("geometry", ""))
    if geometry:
        return int(geometry[2]), int(geometry[1])
    described = dict(re.findall(r"\b(height|width)=(\d{1,9})\b", fields.get("format", "")))
    if len(described) == 2:
        return int(described["height"]), int(described["width"])
    return camera_size(fields)


# Sizes of sensors, for headers that name a camera and not its size. Recorders before Metavision 4 wrote the plug-in
# that drove the camera, and a number of the system, where later ones write the size. prophesee-ai/openeb,
# hal_psee_plugins/src/boards/rawfile/psee_raw_file_header.cpp, reads them by the number; others go by the plug-in.
VGA, HD = (480, 640), (720, 1280)  # rows and columns in px

# Plug-ins, with the sensor and the sizes that openeb's table `plugins_map` gave them ("raw constants" of its readers
# of files, up to version 2), unless another source stands beside the name.
PLUGINS = {
    "hal_plugin_gen3_fx3": VGA,
    "hal_plugin_gen31_fx3": VGA,
    "hal_plugin_gen31_evk2": VGA,
    "hal_plugin_gen31_evk3": VGA,
    "hal_plugin_gen4_fx3": HD,
    "hal_plugin_gen4_evk2": HD,
    "hal_plugin_gen41_evk2": HD,
    "hal_plugin_gen41_evk3": HD,
    # With "% geometry 1280x720" in Prophesee's "RAW File Format" (docs.prophesee.ai) and in
    # ros-event-camera/event_camera_tools, src/bag_to_raw_ros2.cpp.
    "hal_plugin_imx636_evk4": HD,
    # CenturyArks' SilkyEvCam; with "% geometry 640x480" and "% geometry 1280x720" in headers of its recorder.
    "evc3a_plugin_gen31": VGA,
    "evc4a_plugin_imx636": HD,
}
# `sensor_name`, as openeb writes it: names and sizes of psee_raw_file_header.cpp, system_id_map.
SENSORS = {"Gen3.0": VGA, "Gen3.1": VGA, "Gen4.0": HD, "Gen4.1": HD, "IMX636": HD}
# `sensor_generation`, likewise. 4.2 stands for sensors of either size (device_system_id.h, systemid2version).
GENERATIONS = {"3.0": VGA, "3.1": VGA, "4.0": HD, "4.1": HD}
# `system_ID`: numbers of openeb's hal_psee_plugins/include/devices/utils/device_system_id.h, with the sizes of
# psee_raw_file_header.cpp, system_id_map; the flag 0x80 marks a kit in between.
SYSTEMS = {
    0x15: VGA,  # CCAM3_GEN3
    0x17: VGA,  # CCAM4_GEN3
    0x97: VGA,  # CCAM4_GEN3_EVK
    0x19: VGA,  # CCAM4_GEN3_REV_B
    0x99: VGA,  # CCAM4_GEN3_REV_B_EVK
    0x1D: VGA,  # CCAM4_GEN3_REV_B_EVK_BRIDGE
    0x21: VGA,  # VISIONCAM_GEN3
    0xA1: VGA,  # VISIONCAM_GEN3_EVK
    0x22: VGA,  # VISIONCAM_GEN31
    0xA2: VGA,  # VISIONCAM_GEN31_EVK
    0x1C: VGA,  # CCAM3_GEN31
    0x23: VGA,  # CCAM5_GEN31
    0x29: VGA,  # EVK2_GEN31
    0x28: VGA,  # EVK3_GEN31_EVT3
    0x1A: HD,  # CCAM3_GEN4
    0x1E: HD,  # CCAM5_GEN4
    0x2E: HD,  # CCAM5_GEN4_FIXED_FRAME
    0x1F: HD,  # EVK2_GEN4
    0x27: HD,  # EVK2_GEN41
    0x30: HD,  # EVK3_GEN41
    0x31: HD,  # EVK3_IMX636
    0x32: HD,  # EVK2_IMX636
}
INTEGRATORS = ("integrator_name", "camera_integrator_name", "plugin_integrator_name")
PROPHESEE = "Prophesee"  # numbers of systems mean something else in headers of other makers


def camera_size(fields: Mapping[str, str]) -> tuple[int, int] | None:
    """(height, width) in px of the camera that a header names; None where it names none, or two of different sizes.

    Args:
        fields: of the header, by lower-case name.
    """
    system = fields.get("system_id", "")
    own = all(fields.get(name, PROPHESEE) == PROPHESEE for name in INTEGRATORS)
    sizes = {
        PLUGINS.get(fields.get("plugin_name", "")),
        SENSORS.get(fields.get("sensor_name", "")),
        GENERATIONS.get(fields.get("sensor_generation", "")),
        SYSTEMS.get(int(system)) if own and system.isascii() and system.isdecimal() and len(system) < 10 else None,
    } - {None}
    return sizes.pop() if len(sizes) == 1 else None
