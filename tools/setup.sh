#!/usr/bin/env bash
# Usage: tools/setup.sh [EXTRAS]
# Makes .venv where it is missing and installs the project into it, with the versions of constraints.txt.
# EXTRAS: optional dependencies of pyproject.toml, comma-separated. PYTHON in the environment names the
# interpreter, PIP_ARGS holds further arguments for pip.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:-}
venv=.venv
supported='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'

fail() {
    echo "error: $*" >&2
    exit 2
}

# A name on PATH can be a shim that fails when it is run, so every candidate is run.
supports() { "$1" -c "$supported" 2>/dev/null; }
can_make_venv() { "$1" -c 'import ensurepip' 2>/dev/null || "$1" -m pip --version >/dev/null 2>&1; }

find_python() {
    local candidates=(python3.11 python3.12 python3.13 python3.10 python3) candidate found=()
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        supports "$candidate" || continue
        found+=("$candidate")
        if can_make_venv "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    [[ ${#found[@]} -eq 0 ]] || fail "${found[0]}: has neither the venv module nor pip;" \
        "install one of them (Debian, Ubuntu: apt install python3-venv) and run make again"
    fail "no Python 3.10 to 3.13 among: ${candidates[*]} ($("${candidates[-1]}" --version 2>&1 | tail -1));" \
        "3.14 lacks what mmengine needs; install one or name it: make PYTHON=/path/to/python3.12 ..."
}

# Debian ships Python without ensurepip; the pip beside it then puts a pip into the new environment.
make_venv() {
    local python=$1
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    else
        "$python" -m venv --clear --without-pip "$venv"
        "$python" -m pip install -qq --target \
            "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip
    fi
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    make_venv "$python"
fi
supports "$venv/bin/python" || fail "$venv: made by $("$venv/bin/python" --version), not by 3.10 to 3.13; run make clean first"

# pip draws its own progress on a terminal; elsewhere only what goes wrong is worth a line.
quiet=()
[[ -t 1 ]] || quiet=(-qq)
echo "Installing into $venv with $("$venv/bin/python" --version): about a minute, longer where torch brings CUDA"
# shellcheck disable=SC2086  # PIP_ARGS is a list of arguments
"$venv/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --no-compile \
    --constraint constraints.txt ${PIP_ARGS:-} ./tools/opencv-python --editable ".${extras:+[$extras]}" ||
    fail "pip could not install everything (see above); docs/installation.md names the known causes"

# Importing proves the installation and leaves the bytecode of what is used; pip would compile everything, which
# takes longer than all the rest.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c '
import tespec.compat
import cv2, h5py, hdf5plugin, matplotlib.pyplot, mmdet.models, mmseg.models, numba, pandas, scipy.stats, timm
' || fail "$venv: cannot import what was just installed (see above); run make clean, then the command again"
