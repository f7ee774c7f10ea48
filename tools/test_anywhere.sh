#!/usr/bin/env bash
# Usage: tools/test_anywhere.sh [PYTEST ARGUMENTS]
# Run the tests once per row below: vector instructions for torch, MKL, oneDNN and numba, threads, and a random order.
# ONLY selects rows. The exit code is 1 if a row failed; the output names it.
set -uo pipefail
cd "$(dirname "$0")/.."

WORKERS=${WORKERS:-2}
# name, ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_CBWR, NUMBA_CPU_NAME, threads per process, seed of the order
ROWS=(
    "sse default SSE41 COMPATIBLE generic 1 1"
    "avx2 avx2 AVX2 AVX2 x86-64-v3 2 2"
    "avx512 avx512 DEFAULT AUTO - 4 3"
)

failed=() ran=0
for row in "${ROWS[@]}"; do
    read -r name capability onednn mkl numba threads seed <<<"$row"
    [[ " ${ONLY:-$name} " == *" $name "* ]] || continue
    if [[ $name != sse ]] && ! grep -qw "${name/avx512/avx512f}" /proc/cpuinfo; then
        echo "-- $name: skipped, this CPU does not support it"
        continue
    fi
    environment=(ATEN_CPU_CAPABILITY="$capability" ONEDNN_MAX_CPU_ISA="$onednn" MKL_CBWR="$mkl"
        OMP_NUM_THREADS="$threads" NUMBA_NUM_THREADS="$threads" OMP_WAIT_POLICY=PASSIVE)
    [[ $numba == - ]] || environment+=(NUMBA_CPU_NAME="$numba")
    # Multi-threaded processes compete for cores: run fewer of them, and let their threads wait passively.
    at_once=$(((WORKERS + threads - 1) / threads))
    ran=$((ran + 1))
    echo "-- $name: ${environment[*]}, order $seed, $at_once in parallel"
    env "${environment[@]}" .venv/bin/python -m pytest -n "$at_once" -p randomly --randomly-seed="$seed" \
        "$@" || failed+=("$name")
done
if ((ran == 0)); then
    echo "error: ONLY=$ONLY: selects no row that this CPU supports; choose from sse, avx2, avx512" >&2
    exit 2
fi
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}"
    exit 1
fi
