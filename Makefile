# make demo    train the example twice, broken and healthy, both watched
# make test    all tests
# make lint    ruff, mypy, import contracts
# make check   lint, then test: what a change must pass
# make bench   what watching costs (BENCH="--quick" for less)
# make growth  whether memory grows over 20,000 watched steps
# make peers   what watching costs with other tools (PEERS="--quick" for less)
# make clean   remove what the others made, except .venv

PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
BENCH ?=
GROWTH ?=
PEERS ?=

.PHONY: demo test test-quick lint format check bench growth peers clean help setup-example setup-dev

help:
	@sed -n 's/^# make/make/p' Makefile

setup-example setup-dev: setup-%:
	@PYTHON=$(PYTHON) tools/setup_venv.sh $*

demo: setup-example
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/digits/demo.sh $(DEMO)

test: setup-dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(PYTEST)

test-quick: setup-dev
	$(BIN)/python -m pytest -q -m "not slow" $(PYTEST)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test

bench: setup-dev
	$(BIN)/python benchmarks/overhead.py $(BENCH)

growth: setup-dev
	$(BIN)/python benchmarks/growth.py $(GROWTH)

peers: setup-dev
	$(BIN)/python benchmarks/peers.py $(PEERS)

clean:
	rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
