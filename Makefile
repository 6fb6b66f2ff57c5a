# The commands of a newcomer. Each sets up .venv first if it is not there.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.PHONY: setup demo test lint docs bench bench_gpu

setup: .venv/installed

# what `make demo` needs: the pipeline, the trainer and the export
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[demo]"
	touch $@

# what tests, lint and benchmarks need in addition
.venv/installed_dev: .venv/installed
	$(INSTALL) --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/python deploy/demo/run.py

# Files run in their order on disk: xdist would sort them by their number of tests, so that the longest comes last.
test: .venv/installed_dev
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed_dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# the generated parts of docs/: the reference of recipe keys and the file map
docs: setup
	$(BIN)/python -m trainer.config.document
	$(BIN)/python docs/file_map.py

bench: .venv/installed_dev
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/saves.py

# Stands alone: the machine with the GPU needs torch 2.11 or newer and this directory, nothing else.
bench_gpu:
	$(PYTHON) benchmarks/gpu.py
