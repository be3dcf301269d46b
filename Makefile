# make demo    train the example twice under watch: once broken, once healthy
# make test    unit, conformance and property tests, and the first integration tests to fail after a mistake, in five
#              minutes (TESTS="tests/unit/rules" for some)
# make test-all  all tests; those of object stores use Ceph's radosgw if it is installed, else moto
#              (WATCHGLASS_TEST_S3=radosgw or moto overrides this)
# make test-frameworks  tests of TensorFlow, Keras and JAX, which it installs; the other targets skip them without these
# make bare    install watchglass alone, with the newest and the lowest releases of what it needs, and run each command
# make programs  start each benchmark, tool and example for some seconds (PROGRAMS="peers growth" for some)
# make lint    ruff, mypy, import contracts, types of scripts
# make format  format the code, and repair what ruff can
# make check   lint, then test-all: a change must pass it
# make bench   the cost of watching (BENCH="--quick" for less)
# make launch  what launcher and evaluator cost in addition to a short run
# make growth  whether memory grows over 20,000 watched steps
# make store   the cost of the run store: bytes, opening, following, a live run, many workers (STORE="--quick" for less)
# make scale   how much faster an evaluation is on several cores (SCALE="--quick" for less)
# make rules   the cost of evaluating rules: rows per second, time to a finding, growth, a quiet run (RULES="--quick")
# make zoo     recall and false alarms of the default rules, for docs/scoreboard.md: hours (ZOO="--quick" for a minute)
# make slow-zoo  whether the right bottleneck of slow programs is named first (SLOW_ZOO="--write" for docs/slow-programs.md)
# make rule-pages  write docs/rules/, the page of each rule, and draw the figures that are missing (RULE_PAGES="--redraw NAME")
# make framework-rules  write docs/frameworks/rules.md: which rules each framework feeds
# make sampling  the cost of sampling system metrics (SAMPLING="--processes 32", or "--days 7" for a week's size)
# make compiled  what watching adds to steps of Keras, TensorFlow and JAX, as installed (COMPILED="--seconds 5" for less)
# make loading  what observing a data loader takes for each batch (LOADING="--workers 2")
# make fleet   the cost of following many runs with one process (FLEET="--quick" for less)
# make dashboard  what the dashboard takes for long runs and for many workers (DASHBOARD="--quick" for less)
# make gpu     the tests that a GPU changes, and what statistics of its tensors take (on a machine with one)
# make peers   the cost of watching with other tools (PEERS="--quick" for less)
# make fuzz    hostile files for every reader and random orders of events for the writer (FUZZ="--seconds 600")
# make clean   remove files that the other targets made, except .venv

PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
BENCH ?=
COMPILED ?=
GROWTH ?=
LAUNCH ?=
PEERS ?=
BARE ?=
PROGRAMS ?=
STORE ?=
SCALE ?=
FLEET ?=
DASHBOARD ?=
RULES ?=
ZOO ?=
SLOW_ZOO ?=
SAMPLING ?=
LOADING ?=
FUZZ ?= --seconds 300
RULE_PAGES ?=
# Integration tests for make test: the ordinary ways of capture, launch and evaluation.
FIRST := budget captured_tensors digits_example ends_of_a_training evaluator_process faults_of_ours first_bad_module \
  launcher_imports pytorch_semantics resume rules_configure_capture
# What runs on a GPU where there is one.
ON_GPU := tests/devices tests/unit/capture/test_device.py tests/unit/capture/test_device_costs.py \
  tests/properties/test_device_properties.py tests/integration/test_triton.py tests/integration/compiled/test_graphs.py \
  tests/integration/test_first_bad_device.py
# What needs TensorFlow, Keras or JAX.
OF_FRAMEWORKS := tests/frameworks tests/conformance/test_tensorflow_adapter.py tests/conformance/test_jax_adapter.py \
  tests/unit/capture/test_tensorflow_arrays.py tests/unit/capture/test_jax_graph.py \
  $(wildcard tests/integration/test_*_loops.py tests/integration/test_keras_*.py) tests/docs/test_framework_pages.py \
  tests/docs/test_framework_rules_page.py
TESTS ?= tests/unit tests/conformance tests/properties $(FIRST:%=tests/integration/test_%.py)
# Options of pytest, for make test and make test-all.
PYTEST ?=
# Quick tests keep a core busy. Many of the others wait for processes and servers: they get twice as many workers as cores.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
QUICK_WORKERS := $(or $(WORKERS),$(shell echo $$(($(CORES) < 8 ? $(CORES) : 8))))
ALL_WORKERS := $(or $(WORKERS),$(shell echo $$(($(CORES) < 4 ? 2 * $(CORES) : 8))))
# Files are taken in their order, in which the many short ones come last (tests/conftest.py). A worker that crashes ends
# the tests: where another one takes its place, pytest-xdist 3.8 can wait for ever for files that it had finished.
RUN_TESTS = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: demo test test-all test-frameworks bare programs lint format check bench compiled loading launch growth gpu peers scale fuzz store rules zoo slow-zoo fleet dashboard rule-pages framework-rules clean help setup-example setup-dev setup-frameworks

help:
	@sed -n 's/^# make/make/p' Makefile

setup-example setup-dev setup-frameworks: setup-%:
	@PYTHON=$(PYTHON) tools/setup_venv.sh $*

demo: setup-example
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/digits/demo.sh $(DEMO)

test: setup-dev
	$(RUN_TESTS) -n $(QUICK_WORKERS) -m "not slow" $(TESTS) $(PYTEST)

test-all: setup-dev
	$(RUN_TESTS) -n $(ALL_WORKERS) $(PYTEST)

test-frameworks: setup-frameworks
	$(RUN_TESTS) -n $(ALL_WORKERS) $(OF_FRAMEWORKS) $(PYTEST)

bare:
	$(PYTHON) tools/bare_install.py $(BARE)

programs: setup-dev
	$(BIN)/python tools/try_programs.py $(PROGRAMS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if type tsc >/dev/null 2>&1; then tsc -p tools/tsconfig.json; else echo "scripts not checked: tsc of Debian's node-typescript is not installed"; fi

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test-all

bench: setup-dev
	$(BIN)/python benchmarks/overhead.py $(BENCH)

compiled: setup-dev
	$(BIN)/python benchmarks/compiled_steps.py $(COMPILED)

launch: setup-dev
	$(BIN)/python benchmarks/launching.py $(LAUNCH)

growth: setup-dev
	$(BIN)/python benchmarks/growth.py $(GROWTH)

gpu: setup-dev
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(RUN_TESTS) -n $(ALL_WORKERS) $(ON_GPU) $(PYTEST)
	$(BIN)/python benchmarks/device_statistics.py
	$(BIN)/python benchmarks/overhead.py --only device-1

peers: setup-dev
	$(BIN)/python benchmarks/peers.py $(PEERS)

fuzz: setup-dev
	$(BIN)/python tests/fuzz/run.py $(FUZZ)
	WATCHGLASS_TEST_EXAMPLES=1000 $(BIN)/python -m pytest -q --timeout 0 -m "not slow" tests/properties/test_writer_machine.py
	WATCHGLASS_TEST_EXAMPLES=200 $(BIN)/python -m pytest -q --timeout 0 tests/integration/semantics/test_any_order.py

fleet: setup-dev
	$(BIN)/python benchmarks/fleet.py $(FLEET)

dashboard: setup-dev
	$(BIN)/python benchmarks/dashboard.py $(DASHBOARD)

store: setup-dev
	$(BIN)/python benchmarks/store.py $(STORE)

scale: setup-dev
	$(BIN)/python benchmarks/scale.py $(SCALE)

rules: setup-dev
	$(BIN)/python benchmarks/rules.py $(RULES)

loading: setup-dev
	$(BIN)/python benchmarks/loading.py $(LOADING)

sampling: setup-dev
	$(BIN)/python benchmarks/sampling.py $(SAMPLING)

zoo: setup-dev
	$(BIN)/python benchmarks/zoo/score.py $(ZOO)

slow-zoo: setup-dev
	$(BIN)/python benchmarks/slow_zoo/slow_zoo.py $(SLOW_ZOO)

rule-pages: setup-dev
	$(BIN)/python tools/rule_pages.py $(RULE_PAGES)

framework-rules: setup-dev
	$(BIN)/python tools/framework_rules.py

clean:
	rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
