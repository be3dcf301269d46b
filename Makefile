# make demo    train the example twice, broken and healthy, both watched
# make test    unit, conformance, property and integration tests, but for slow ones (TESTS="tests/unit/rules" for some)
# make test-all  all tests; those of object stores use Ceph's radosgw where it is installed, else moto
#              (WATCHGLASS_TEST_S3=radosgw or moto chooses)
# make lint    ruff, mypy, import contracts
# make check   lint, then test-all: what a change must pass
# make bench   what watching costs (BENCH="--quick" for less)
# make launch  what launcher and evaluator cost beside a short run
# make growth  whether memory grows over 20,000 watched steps
# make store   what the run store costs: bytes, opening, following, a live run, many workers (STORE="--quick" for less)
# make scale   what spreading an evaluation over cores brings (SCALE="--quick" for less)
# make rules   what evaluating rules costs: rows per second, time to a finding, growth, a quiet run (RULES="--quick")
# make fleet   what following many runs with one process costs (FLEET="--quick" for less)
# make peers   what watching costs with other tools (PEERS="--quick" for less)
# make fuzz    hostile files into every reader, for long (FUZZ="--seconds 600"); more orders of events at its writer
# make clean   remove what the others made, except .venv

PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
BENCH ?=
GROWTH ?=
LAUNCH ?=
PEERS ?=
STORE ?=
SCALE ?=
FLEET ?=
RULES ?=
FUZZ ?= --seconds 300
TESTS ?= tests/unit tests/conformance tests/properties tests/integration
# Options of pytest, for both kinds of tests.
PYTEST ?=
# Many tests wait for processes and servers, so there are twice as many workers as cores.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 4 ? 2 * cores : 8)))
# Files are taken in their order, in which the many short ones come last (tests/conftest.py).
RUN_TESTS = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint format check bench launch growth peers scale fuzz store rules fleet clean help setup-example setup-dev

help:
	@sed -n 's/^# make/make/p' Makefile

setup-example setup-dev: setup-%:
	@PYTHON=$(PYTHON) tools/setup_venv.sh $*

demo: setup-example
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/digits/demo.sh $(DEMO)

test: setup-dev
	$(RUN_TESTS) -m "not slow" $(TESTS) $(PYTEST)

test-all: setup-dev
	$(RUN_TESTS) $(PYTEST)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test-all

bench: setup-dev
	$(BIN)/python benchmarks/overhead.py $(BENCH)

launch: setup-dev
	$(BIN)/python benchmarks/launching.py $(LAUNCH)

growth: setup-dev
	$(BIN)/python benchmarks/growth.py $(GROWTH)

peers: setup-dev
	$(BIN)/python benchmarks/peers.py $(PEERS)

fuzz: setup-dev
	$(BIN)/python tests/fuzz/run.py $(FUZZ)
	WATCHGLASS_TEST_EXAMPLES=1000 $(BIN)/python -m pytest -q --timeout 0 -m "not slow" tests/properties/test_writer_machine.py

fleet: setup-dev
	$(BIN)/python benchmarks/fleet.py $(FLEET)

store: setup-dev
	$(BIN)/python benchmarks/store.py $(STORE)

scale: setup-dev
	$(BIN)/python benchmarks/scale.py $(SCALE)

rules: setup-dev
	$(BIN)/python benchmarks/rules.py $(RULES)

clean:
	rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
