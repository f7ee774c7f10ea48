#!/usr/bin/env bash
# Usage: tools/carry_wheels.sh [FOLDER]
# Downloads into FOLDER (default .whl, which git ignores) the packages of the harness that a machine with PyTorch often
# lacks, for machines that reach no package index. There, in a checkout that holds FOLDER:
#
#   python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site FOLDER/*.whl
#   PYTHONPATH=/tmp/site:. python3 benchmarks/gpu.py
#
# PYTHON_VERSION in the environment names that machine's Python (default 3.12), PACKAGES other packages than these.
# Versions are those of constraints.txt. torch, torchvision, timm, numpy, numba, h5py and OpenCV have to be there already.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-.whl}
version=${PYTHON_VERSION:-3.12}
packages=${PACKAGES:-mmengine mmcv-lite mmdet mmsegmentation addict yapf platformdirs termcolor prettytable wcwidth
    terminaltables pycocotools shapely ftfy setuptools hdf5plugin lz4 zstandard pydantic pydantic_core annotated-types
    typing-inspection typing_extensions}

# A line of constraints.txt may name the newest release for Python 3.10 alone; those are left out.
wanted=()
for package in $packages; do
    line=$(grep -i "^$package==" constraints.txt | grep -v 'python_version <' | head -n 1) || true
    [[ -n $line ]] || { echo "error: constraints.txt: names no version of $package; add it" >&2; exit 2; }
    line=${line%%;*}
    wanted+=("${line%% *}")
done

# pip matches the platform to the letter, so each one that wheels are built for is named.
platforms=()
for platform in manylinux_2_{39..24}_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_12_x86_64 \
    manylinux2010_x86_64 manylinux_2_5_x86_64 manylinux1_x86_64; do
    platforms+=(--platform "$platform")
done
rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version "$version" "${platforms[@]}" --dest "$folder" "${wanted[@]}"

# Three quarters of hdf5plugin are compressors that no recording here is written with.
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
            config.write_text(config.read_text().replace(f"'{name}', ", ""))  # of those that are loaded
    Path(shutil.make_archive(str(folder), "zip", folder)).replace(wheel)
    shutil.rmtree(folder)
PYTHON
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sm "$folder" | cut -f 1) MiB in $folder, for Python $version"
