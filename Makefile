# Every target sets up what it needs in .venv and does so again when pyproject.toml, constraints.txt or the kernels'
# sources changed.

# Where the CPU build of torch for Linux is found. PyPI's brings CUDA along, gigabytes that nothing here uses. Where this
# index cannot be reached pip says so and takes what it finds elsewhere; empty, it is not asked.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt

# The first of these that runs and is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# The compiled kernels and what they are made of.
LIBRARY := minilab_gen/kernels/libminilab_kernels.$(if $(filter Darwin,$(shell uname)),dylib,so)
KERNELS := hatch_build.py minilab_gen/kernels/build.py $(wildcard minilab_gen/kernels/source/*)

# What `make test` hands to pytest, for instance ARGS="-k stream".
ARGS ?=

# In how many processes `make test` and `make coverage` run them, file by file: two, as much of the time they wait. 0 is
# pytest alone, which ARGS=--pdb needs. In pytest's own order of files, as by their numbers of tests the longest would
# come last.
PROCESSES ?= 2
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

# What `make check` runs the tests with: `test`, or `coverage`, which measures, too, and takes more than half as long again.
TESTS ?= test

# How many runs `make chaos` makes, a minute each.
SEEDS ?= 20

# What `make compose-test` runs: "docker compose" or "docker-compose"; empty, what is there.
COMPOSE ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test quick coverage bench chaos compose-test interop other-processor pictures check format lint types contracts kernels wheel tidy sanitize golden setup

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LIBRARY)  ## watch a sentence grow token by token; leaves nothing running
	@$(BIN)/minilab-worker demo

test: $(VENV)/.dev  ## run the tests (ARGS="-k stream" runs some of them)
	@$(PYTEST) $(ARGS)

quick: $(VENV)/.dev  ## run the tests that are quick, in about a minute: most of them, with all modules
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

coverage: $(VENV)/.dev  ## run the tests and measure the branches of our packages that they take; the floor is in pyproject.toml
	@$(PYTEST) --cov $(ARGS)

# Sizes that fit in five minutes on two quiet cores; each program alone measures longer, see its --help.
bench: $(VENV)/.dev  ## measure exactness, speed and where the time goes; peers, too, where they are installed
	@$(BIN)/python benchmarks/exactness.py --jobs 1000
	@$(BIN)/python benchmarks/throughput.py --rounds 3
	@$(BIN)/python benchmarks/overhead.py
	@test ! -d "$$HOME/.cache/minilab-peers" || $(BIN)/python benchmarks/peers.py --jobs 64 --rounds 2

chaos: $(VENV)/.dev  ## kill, pause and cut off everything around a service under load (SEEDS=20)
	@PYTHONPATH=tests $(BIN)/python -m chaos --seeds $(SEEDS)

compose-test: $(VENV)/.dev  ## build the containers and do the same to them, where there is Docker (COMPOSE=docker-compose)
	@PYTHONPATH=tests COMPOSE='$(COMPOSE)' $(BIN)/python -m containers

kernels: $(VENV)/.worker  ## compile the kernels anew where their sources changed; warnings are errors
	@$(BIN)/python -m minilab_gen.kernels.build --strict

wheel: $(VENV)/.dev  ## build the wheel in dist, and test the kernels that it carries
	@rm -rf dist
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	@$(PIP) --no-deps --target dist/installed dist/minilab_gen-*.whl
	@ls dist/*.whl
	@PYTHONPATH=dist/installed $(BIN)/python -P -c 'import minilab_gen; assert "dist/installed" in minilab_gen.__file__'
	@PYTHONPATH=dist/installed:tests $(BIN)/python -P -m pytest -q --import-mode=importlib tests/kernels

tidy: $(VENV)/.dev  ## clang-tidy over the kernels: likely bugs, and what is slow for no reason
	@PYTHONPATH=tests $(BIN)/python -m kernels.tidy

sanitize: $(VENV)/.dev  ## run the kernels as the compiler's sanitizers watch for bad addresses, undefined behaviour and races
	@PYTHONPATH=tests $(BIN)/python -m kernels.sanitize

golden: $(VENV)/.dev  ## compare every build with the golden bits, aarch64 under qemu, too
	@PYTHONPATH=tests $(BIN)/python -m kernels.golden --cross

interop: $(VENV)/.dev  ## have the tools of RQ look at a service, and programs that speak OpenAI's API ask one; installs them in .venv-interop
	@PYTHONPATH=tests $(BIN)/python -m interop

other-processor: $(VENV)/.dev  ## run the tests of exactness again, limited to the instructions of other processors
	@PYTHONPATH=tests $(BIN)/python -m other_processor $(ARGS)

pictures: $(LIBRARY)  ## make docs/session.svg and docs/watch.svg again, of real runs
	@$(BIN)/python docs/pictures.py

check: format lint types contracts tidy $(TESTS)  ## everything that must hold before a commit: format, lint, types, contracts, clang-tidy, tests

format: $(VENV)/.dev  ## is the code formatted?
	@$(BIN)/ruff format --check
	@$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(KERNELS)) $(wildcard tests/kernels/*.cpp)

lint: $(VENV)/.dev  ## rules of style and likely bugs
	@$(BIN)/ruff check

types: $(VENV)/.dev  ## mypy, strict
	@$(BIN)/mypy

contracts: $(VENV)/.dev  ## who may import whom
	@$(BIN)/lint-imports --no-logo

setup: $(VENV)/.dev  ## only set up .venv for all of the above

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; name one with PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The demo needs only the worker, so a first look does not wait for the tools of the trade.
$(VENV)/.worker: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing the worker into $(VENV)"
	@$(BIN)/python minilab_gen/kernels/build.py --announce
	@$(PIP) -e '.[serve]'
	@touch $@

# By pip and not by a compiler's command: where there is none, pip brings one along for as long as the build takes.
$(LIBRARY): $(KERNELS) | $(VENV)/.worker
	@test -e $@ && test -z "$$(find $(KERNELS) -newer $@)" || { \
		$(BIN)/python minilab_gen/kernels/build.py --announce && $(PIP) --no-deps -e .; }
	@touch $@

$(VENV)/.dev: $(VENV)/.worker | $(LIBRARY)
	@echo "Installing what the checks need into $(VENV): torch is most of it, a minute or two when pip's cache is warm"
	@test "$$(uname)" != Linux || test -z '$(TORCH_INDEX_URL)' || \
		$(PIP) --no-deps --extra-index-url '$(TORCH_INDEX_URL)' torch
	@$(PIP) -e '.[worker,gateway,train,dev]'
	@touch $@
