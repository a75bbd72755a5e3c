# Everything sets itself up: each target makes and uses .venv.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-apart test-oldest bench lint format types clean

# Torch goes first and pinned, so that the range in pyproject.toml does not fetch another build.
# A new pip, because that of Debian's Python 3.11 cannot build a package that the tests need.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install "$(TORCH)"
	$(PIP) install --editable ".[serve]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed ## train the packaged zh→en translator on this CPU, score it, try it
	$(BIN)/qkv demo

# A process a core, each with one thread: they would only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
APART := browser or download or slow

test: $(VENV)/.installed-dev ## the test suite
	$(PYTEST) -m "not ($(APART))" $(ARGS)

test-apart: $(VENV)/.installed-dev ## tests that need Chromium, a download or a cluster of processes
	$(PYTEST) -m "$(APART)" $(ARGS)

# What is compared with and what tests with, like transformers, is the newest that goes with these.
OLDEST := .venv-oldest/bin/python
PEERS := accelerate httpx hypothesis peft pexpect pyte pytest pytest-timeout pytest-xdist \
	scikit-learn sentencepiece seqeval torchmetrics torchvision transformers
test-oldest: ## the test suite with the oldest libraries that pyproject.toml allows
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST) -m pip --quiet install --upgrade pip
	$(OLDEST) -m pip --quiet install torch==2.11.0
	$(OLDEST) -m pip --quiet install --constraint tests/oldest.txt \
		--editable ".[curves,hub,ctranslate2,parquet,serve,zst]" $(PEERS)
	OMP_NUM_THREADS=1 $(OLDEST) -m pytest -n auto --maxprocesses 4 --dist worksteal \
		-m "not (gpu or $(APART))" $(ARGS)

bench: $(VENV)/.installed-dev ## measure the headline rows here and write the tables of figures
	$(BIN)/python -m bench $(ARGS)

lint: $(VENV)/.installed-dev ## ruff (lint and format) and mypy (strict)
	$(BIN)/ruff check src tests bench docs
	$(BIN)/ruff format --check src tests bench docs
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix src tests bench docs
	$(BIN)/ruff format src tests bench docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
