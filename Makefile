# Every target sets up .venv by itself. Variables: PYTHON (interpreter), PIP_ARGS (for pip), WORKERS (test processes) and
# THREADS (of each).
PYTHON ?=
PIP_ARGS ?=
WORKERS ?= 2
THREADS ?= 1

BIN := .venv/bin
SETUP_FILES := pyproject.toml setup.py constraints.txt tools/setup.sh tools/opencv-python/pyproject.toml
# One thread per test process: more of them than cores slow each other down tenfold. Neighbouring tests stay in one process,
# so that what a file prepares is prepared once.
PYTEST := OMP_NUM_THREADS=$(THREADS) NUMBA_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

export PYTHON PIP_ARGS
unexport PYTHONPATH

.PHONY: help demo setup test test-slow test-real test-anywhere golden soak gpu lint clean
# Two pips in one environment do not get along, whatever -j says.
.NOTPARALLEL:

help:  ## list the targets
	@echo "Usage: make TARGET [PYTHON=python3.12] [PIP_ARGS='...'] [WORKERS=2] [THREADS=1]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' Makefile

demo: .venv/run.stamp  ## events, pre-training, fine-tuning and the table on the sample world
	$(BIN)/python benchmarks/plan.py demo
	@echo "Next: source .venv/bin/activate"
	@echo "      python benchmarks/run.py --method tespec --task ddd17 --data /data/ddd17"
	@echo "      python benchmarks/report.py"

setup: .venv/dev.stamp  ## only install: what the demo, the tests and lint need

test: .venv/dev.stamp  ## the tests, without the slow ones
	$(PYTEST)

test-slow: .venv/dev.stamp  ## the slow tests alone
	$(PYTEST) -m slow

test-real: .venv/dev.stamp  ## the archives in $TESPEC_DATA against the published numbers of recordings and labels
	$(PYTEST) tests/real -n 0 -rs

test-anywhere: .venv/dev.stamp  ## the tests with other vector instructions, threads and orders (half an hour)
	WORKERS=$(WORKERS) ONLY="$(ONLY)" tools/test_anywhere.sh

golden: .venv/dev.stamp  ## compute the values of tests/golden again; ONLY=metrics: those of one family or case
	GOLDEN=write $(PYTEST) tests/golden -n 0 -k "$(ONLY)"

soak: .venv/dev.stamp  ## kill trainings and damage files for an hour
	$(BIN)/python tools/kills.py --kills 1000 --minutes 15
	$(BIN)/python tools/fuzz.py --cases 100000

gpu: .venv/run.stamp  ## check and measure on this machine's GPU; GPU_ARGS="--device cpu --small": without
	$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

lint: .venv/dev.stamp  ## style, formatting and types
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
