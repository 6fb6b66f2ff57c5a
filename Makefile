# The newcomer's verbs. Each sets up .venv first when it is not there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint bench bench_gpu

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[pipeline,trainer,dev]"
	touch $@

demo: setup
	$(BIN)/python deploy/demo/run.py

# in the order of the files: by the number of their tests, as xdist would have it, the longest would come last
test: setup
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/training.py

# stands alone: the machine with the GPU needs torch 2.11 or newer and this tree, no more
bench_gpu:
	$(PYTHON) benchmarks/gpu.py
