#!/usr/bin/env bash
# Usage: tools/carry_wheels.sh [FOLDER]
# Download the harness's packages that a machine with PyTorch often lacks into FOLDER (default .whl, ignored by git), for
# a machine without access to a package index. There, in a checkout with FOLDER:
#
#   python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site FOLDER/*.whl
#   PYTHONPATH=/tmp/site:. python3 benchmarks/gpu.py
#
# PYTHON_VERSION in the environment is that machine's Python (default 3.12), PACKAGES replaces the list of packages.
# Versions come from constraints.txt. torch, torchvision, timm, numpy, numba, scipy, matplotlib, h5py and OpenCV must be
# installed there, with what they need.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-.whl}
version=${PYTHON_VERSION:-3.12}
packages=${PACKAGES:-mmengine mmcv-lite mmdet mmsegmentation addict yapf platformdirs termcolor prettytable wcwidth
    terminaltables pycocotools shapely ftfy regex setuptools hdf5plugin lz4 zstandard pydantic pydantic_core
    annotated-types typing-inspection typing_extensions six cyclopts attrs docstring_parser rich rich-rst markdown-it-py
    mdurl pygments filelock}

# Skip lines of constraints.txt that apply only to Python 3.10.
wanted=()
for package in $packages; do
    line=$(grep -i "^$package==" constraints.txt | grep -v 'python_version <' | head -n 1) || true
    [[ -n $line ]] || { echo "error: constraints.txt: pins no version of $package; add it" >&2; exit 2; }
    line=${line%%;*}
    wanted+=("${line%% *}")
done

# pip matches the platform exactly, so list each one that wheels are built for.
platforms=()
for platform in manylinux_2_{39..24}_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_12_x86_64 \
    manylinux2010_x86_64 manylinux_2_5_x86_64 manylinux1_x86_64; do
    platforms+=(--platform "$platform")
done
rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version "$version" "${platforms[@]}" --dest "$folder" "${wanted[@]}"

# Three quarters of hdf5plugin are compressors that no supported recording uses.
python3 - "$folder" <<'PYTHON'
import re, shutil, sys
from pathlib import Path

KEPT = {"blosc", "blosc2", "zstd", "lz4", "bshuf", "bzip2"}
for wheel in Path(sys.argv[1]).glob("hdf5plugin-*.whl"):
    folder = wheel.with_suffix("")
    shutil.unpack_archive(wheel, folder, "zip")
    record, config = (next(folder.glob(f"*/{name}")) for name in ("RECORD", "_config.py"))
    for path in folder.rglob("libh5*.so"):
        name = path.stem.removeprefix("libh5")
        if name not in KEPT:
            path.unlink()
            record.write_text(re.sub(rf".*/{path.name},.*\n", "", record.read_text()))
            config.write_text(config.read_text().replace(f"'{name}', ", ""))  # from the list of plugins to load
    Path(shutil.make_archive(str(folder), "zip", folder)).replace(wheel)
    shutil.rmtree(folder)
PYTHON
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sm "$folder" | cut -f 1) MiB in $folder, for Python $version"
