#!/usr/bin/env bash
# Usage: tools/pythons.sh [VERSION...]
# Install the project with each Python 3.10 to 3.13 of this machine other than that of .venv, import all modules, run a
# cell on the sample world and print its table. Interpreters are python3.N on PATH and those of pyenv; a version that is
# not found is named. VERSION... (default: 3.10 3.11 3.12 3.13) selects versions, PIP_ARGS adds arguments for pip.
set -euo pipefail
cd "$(dirname "$0")/.."

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

tested=$(version_of .venv/bin/python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pyenv=$(pyenv root 2>/dev/null || true)

[[ $# -gt 0 ]] || set -- 3.10 3.11 3.12 3.13
for version in "$@"; do
    python=
    # A name on PATH can be a shim that fails when run.
    for candidate in "python$version" "$pyenv/versions/$version".*/bin/python; do
        [[ $(version_of "$candidate") != "$version" ]] || { python=$candidate; break; }
    done
    if [[ $version == "$tested" ]]; then
        echo "Python $version: in .venv, used by the tests"
    elif [[ -z $python ]]; then
        echo "Python $version: not found, not tested"
    else
        echo "Python $version: $(command -v "$python")"
        mkdir "$folder/$version"
        git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$folder/$version"
        (
            cd "$folder/$version"
            PYTHON=$python tools/setup.sh
            PATH=$PWD/.venv/bin:$PATH
            python -W ignore::SyntaxWarning -c '
import importlib, pkgutil
import tespec.core.compat, baselines
for package in (tespec, baselines):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
'
            python -m tespec.sample --size tiny --root "$folder" --datasets ddd17
            tespec run --method scratch --task ddd17 --data "$folder"/sample-*-tiny/ddd17 --profile smoke --device cpu
            tespec tables --only segmentation --measured
        )
        rm -rf "${folder:?}/$version"
        echo "Python $version: passed"
    fi
done
