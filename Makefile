# Everything happens in .venv, made on first use from constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test quick lint benchmarks clean

demo: $(VENV)/.ready
	$(BIN)/sageplan demo

test: lint
	$(BIN)/pytest

quick: $(VENV)/.ready
	$(BIN)/pytest -m "not slow"

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: $(VENV)/.ready
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
	touch $@

clean:
	rm -rf $(VENV) demo
