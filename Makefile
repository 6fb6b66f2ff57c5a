# The commands of a newcomer. Each sets up .venv first if it is not there.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.PHONY: setup demo test test-fast lint docs bench bench_corpora bench_quality gpu gpu_bundle

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
	$(BIN)/clozeline demo

# Files run in their order on disk: xdist would sort them by their number of tests, so that the longest comes last.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

test: .venv/installed_dev
	$(PYTEST)

# For daily work: tests that start no process and run no job, without those of engines, kills, models and recorded bytes.
SLOW := deploy pipeline/beam pipeline/commit pipeline/engines pipeline/exchange pipeline/jobs \
	pipeline/test_recorded_jobs.py trainer/distributed trainer/finetune trainer/models trainer/suite \
	trainer/test_every_recipe.py
test-fast: .venv/installed_dev
	$(PYTEST) -m "not gpu and not thorough and not processes" $(addprefix --ignore tests/,$(SLOW))

lint: .venv/installed_dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

# the generated pages of docs/, and all pages as a site in out/site
docs: .venv/installed_dev
	$(BIN)/python -m trainer.config.document
	$(BIN)/python -m trainer.finetune.document
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

bench: .venv/installed_dev
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/saves.py

# Whole jobs of `shard` beside datatrove and WikiExtractor: make bench_corpora DUMP=enwiki-....xml.bz2 PAGES=FOLDER_OF_HTML
PAGES ?= /usr/share/doc
bench_corpora: .venv/installed_dev
	$(BIN)/python -m clozeline.demo.corpus out/corpora/documents.jsonl --megabytes 20
	$(BIN)/python -m pip install --quiet --target out/corpora/rivals spacy faust-cchardet warcio wikiextractor
	$(BIN)/python benchmarks/corpora.py --documents out/corpora/documents.jsonl $(if $(DUMP),--dump $(DUMP)) \
	    --pages $(PAGES) --rivals out/corpora/rivals --output out/corpora

# What 2 and 10 minutes of one core buy, beside transformers' run_mlm, on the documentation that Python carries.
bench_quality: .venv/installed_dev
	$(BIN)/python -m clozeline.demo.corpus out/quality/corpus.jsonl --megabytes 24
	$(BIN)/python benchmarks/quality.py out/quality/corpus.jsonl --output out/quality

# The trainer beside transformers, and the tests marked gpu. The machine needs an image with PyTorch 2.10 or newer, and
# what `make gpu_bundle` packs; no network.
gpu:
	$(PYTHON) benchmarks/gpu_run.py

# For another Python: make gpu_bundle BUNDLE_PYTHON=3.12
BUNDLE_PYTHON ?= $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_python_version())")
gpu_bundle: .venv/installed_dev
	$(BIN)/python benchmarks/gpu_bundle.py --python $(BUNDLE_PYTHON)
