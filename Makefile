# Every target sets up .venv first. Variables: PYTHON (interpreter), PIP_ARGS (for pip), WORKERS (test processes) and
# THREADS (per test process).
PYTHON ?=
PIP_ARGS ?=
WORKERS ?= 2
THREADS ?= 1

BIN := .venv/bin
SETUP_FILES := pyproject.toml setup.py constraints.txt tools/setup.sh tools/opencv-python/pyproject.toml
# One thread per test process: more threads than cores make tests ten times slower. Tests of one file mostly run in one
# process, which shares their fixtures.
PYTEST = OMP_NUM_THREADS=$(THREADS) NUMBA_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

export PYTHON PIP_ARGS
unexport PYTHONPATH

.PHONY: help demo setup test test-slow test-pythons test-real test-anywhere golden study soak gpu lint clean
# Two pip processes in one environment conflict, whatever -j says.
.NOTPARALLEL:

help:  ## list the targets
	@echo "Usage: make TARGET [PYTHON=python3.12] [PIP_ARGS='...'] [WORKERS=2] [THREADS=1]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' Makefile

demo: .venv/run.stamp  ## pre-train and score a frozen backbone on the sample world
	$(BIN)/python benchmarks/plan.py demo
	@echo "Next: source .venv/bin/activate"
	@echo "      python benchmarks/run.py --method tespec --task ddd17 --data /data/ddd17 --checkpoint FILE"
	@echo "      python benchmarks/report.py"

setup: .venv/dev.stamp  ## only install what the demo, the tests and lint need

test: .venv/dev.stamp  ## run the tests, except the slow ones
	$(PYTEST)

test-slow: .venv/dev.stamp  ## run only the slow tests
	$(PYTEST) -m slow

test-pythons: .venv/dev.stamp  ## install and run the project with each Python 3.10 to 3.13 of this machine
	tools/pythons.sh

test-real: .venv/dev.stamp  ## check the archives in $TESPEC_DATA against the published numbers of recordings and labels
	$(PYTEST) tests/real -n 0 -rs

test-anywhere: .venv/dev.stamp  ## run the tests with other vector instructions, threads and orders (half an hour)
	$(MAKE) -k $(addprefix test-on-,$(or $(ONLY),sse avx2 avx512))

# Vector instructions of torch, oneDNN, MKL and numba. Processes of several threads compete for cores: run one of them.
sse := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE NUMBA_CPU_NAME=generic
avx2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 NUMBA_CPU_NAME=x86-64-v3
avx512 := ATEN_CPU_CAPABILITY=avx512
test-on-avx2: override THREADS := 2
test-on-avx512: override THREADS := 4
test-on-avx2 test-on-avx512: override WORKERS := 1
test-on-sse test-on-avx2 test-on-avx512: test-on-%: .venv/dev.stamp
	@grep -qw $(*:avx512=avx512f) /proc/cpuinfo || { echo "$*: skipped, this CPU does not support it"; exit 0; }; \
	$($*) OMP_WAIT_POLICY=PASSIVE $(PYTEST) -p randomly --randomly-seed=$(THREADS)

golden: .venv/dev.stamp  ## recompute the values of tests/golden; ONLY=metrics: only one family or case
	GOLDEN=write $(PYTEST) tests/golden -n 0 -k "$(ONLY)"

study: .venv/dev.stamp  ## replace results/sample by the records of the folder RESULTS, with tables and scores.csv
	STUDY=$(abspath $(RESULTS)) $(PYTEST) tests/comparison/test_study.py -n 0

soak: .venv/dev.stamp  ## kill trainings and read damaged files for an hour
	$(BIN)/python tools/kills.py --kills 1000 --minutes 30
	$(BIN)/python tools/fuzz.py --cases 100000

gpu: .venv/run.stamp  ## validate and benchmark this machine's GPU; GPU_ARGS="--device cpu --small": without GPU
	$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

lint: .venv/dev.stamp  ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:  ## remove .venv and the tools' caches; results stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/run.stamp: $(SETUP_FILES)
	@tools/setup.sh
	@touch $@

.venv/dev.stamp: $(SETUP_FILES)
	@tools/setup.sh test,lint
	@touch .venv/run.stamp $@
