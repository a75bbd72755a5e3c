# Everything sets itself up: each target makes and uses .venv.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-oldest bench lint format types clean

# Torch goes first and pinned, so that the range in pyproject.toml does not fetch another build.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "$(TORCH)"
	$(PIP) install --editable ".[serve]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed ## train the packaged zh→en translator on this CPU, score it, try it
	$(BIN)/qkv demo

# A process a core, each with one thread: they would only get in each other's way.
test: $(VENV)/.installed-dev ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

test-oldest: ## some tests with the oldest libraries that pyproject.toml allows
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip --quiet install "$(TORCH)"
	.venv-oldest/bin/python -m pip --quiet install --constraint tests/oldest.txt --editable . pytest pytest-timeout hypothesis seqeval
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest --ignore tests/config/test_presets.py tests/config tests/text tests/cli tests/inspect $(ARGS)

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
