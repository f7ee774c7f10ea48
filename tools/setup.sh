#!/usr/bin/env bash
# Usage: tools/setup.sh [EXTRAS]
# Create .venv if it is missing and install the project into it, with the versions in constraints.txt.
# EXTRAS: optional dependencies in pyproject.toml, comma-separated. PYTHON in the environment selects the
# interpreter, PIP_ARGS adds arguments for pip.
set -euo pipefail
cd "$(dirname "$0")/.."
# If it is set (ROS sets it), pip takes packages outside of .venv for installed ones.
unset PYTHONPATH

extras=${1:-}
venv=.venv

fail() {
    echo "error: $*" >&2
    exit 2
}

works() { "$@" >/dev/null 2>&1; }

supported() { works "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; }

if ! works "$venv/bin/python" -m pip --version; then
    candidates=(python3.11 python3.12 python3.13 python3.10 python3) python= bare=
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        # A name on PATH can be a shim that fails when run, so run every candidate.
        supported "$candidate" || continue
        if works "$candidate" -c 'import ensurepip' || works "$candidate" -m pip --version; then
            python=$candidate
            break
        fi
        bare=${bare:-$candidate}
    done
    [[ -n $python || -z $bare ]] || fail "$bare: has neither the venv module nor pip;" \
        "install one of them (Debian, Ubuntu: apt install python3-venv), then run the command again"
    [[ -n $python ]] || fail "no Python 3.10 to 3.13 among: ${candidates[*]}" \
        "(the last is: $("${candidates[-1]}" --version 2>&1 | tail -n 1)); mmengine does not support 3.14;" \
        "install one of them, or select it: make PYTHON=/path/to/python3.12 ..."
    if works "$python" -c 'import ensurepip'; then
        "$python" -m venv --clear "$venv"
    else  # as on Debian, whose own pip then installs one into the new environment
        "$python" -m venv --clear --without-pip "$venv"
        "$python" -m pip install -qq --target "$(echo "$venv"/lib/python3.*/site-packages)" pip
    fi
fi
supported "$venv/bin/python" || fail "$venv: made with $("$venv/bin/python" --version), not with 3.10 to 3.13;" \
    "run make clean, then the command again"

# pip shows progress on a terminal; elsewhere, print only errors.
quiet=()
[[ -t 1 ]] || quiet=(-qq)
echo "Installing into $venv with $("$venv/bin/python" --version): about a minute, longer if torch comes with CUDA"
# shellcheck disable=SC2086  # PIP_ARGS is a list of arguments
"$venv/bin/python" -m pip install ${quiet[@]+"${quiet[@]}"} --disable-pip-version-check --no-compile \
    --constraint constraints.txt ${PIP_ARGS:-} ./tools/opencv-python --editable ".${extras:+[$extras]}" ||
    fail "pip could not install everything (see above); docs/installation.md lists the known causes"

# Importing tests the installation and compiles the bytecode of the modules in use. pip would compile everything, which
# takes as long as the rest of the installation.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -W ignore::SyntaxWarning -c '
import tespec.core.compat
import cv2, h5py, hdf5plugin, matplotlib.pyplot, mmdet.models, mmseg.models, numba, pandas, scipy.stats, timm
' || fail "$venv: cannot import the installed packages (see above); run make clean, then the command again"
