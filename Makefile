# Two commands on a fresh machine: `make run` (text to a searchable retriever), `make test`.

# The first of these that is a Python 3.11; `make PYTHON=... run` names another.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
INTEROP := .venv/.interop
# Of tests with libraries that must not meet Kennel's own: Playwright, and clients of other servers.
PAGE := .venv/page
CLIENTS := .venv/clients
export KENNEL_CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser)
QUICKSTART := gin_configs/recipes/quickstart.gin

# Compiled programs are kept between commands.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help install interop run speedrun smoke test test-all test-clients check format clean

help:
	@echo "make run       install, then run the main job into runs/quickstart (about 9 minutes)"
	@echo "make test      install, then run the tests"
	@echo "make test-all  the tests that take minutes, too"
	@echo "make test-clients  the page in Chromium, and the server with the clients of others"
	@echo "make interop   install PyTorch and the libraries that exports are opened in, and tested beside"
	@echo "make check     ruff, mypy on the engine, the architecture test"
	@echo "make speedrun  the main job for three seeds: the record in docs/results/speedrun.md"
	@echo "make smoke     every stage of it on a smaller corpus, two minutes, into runs/smoke"
	@echo "make format    let ruff format the code"
	@echo "make clean     remove caches and .venv; runs/ and its store stay"

install: $(STAMP)

$(STAMP): setup.py
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "error: Kennel needs Python 3.11: its pinned libraries were tried together on it;"; \
	  echo "found $(if $(PYTHON),'$(PYTHON)' and that is not one,none on the PATH)."; \
	  echo "Install it (apt install python3.11-venv, brew install python@3.11, pyenv install 3.11),"; \
	  echo "or name it: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv==0.13.8
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[test]'
	@touch $@

interop: $(INTEROP)

# By pip: it also looks where the machine's pip.conf says, which is where wheels of PyTorch for CPUs
# are on some; elsewhere make interop PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
# spares the CUDA libraries. The core's setuptools<81 holds, PyTorch would raise it.
$(INTEROP): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile $(PIP_ARGS) -e '.[interop]'
	@touch $@

run: $(STAMP)
	$(BIN)/python -m launch.recipe --gin_file=$(QUICKSTART)

speedrun: $(STAMP)
	$(BIN)/python -m benchmarks.speedrun

smoke: $(STAMP)
	$(BIN)/python -m launch.recipe --gin_file=gin_configs/recipes/smoke.gin

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -rs --durations=40 -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -rs

# Three environments: pytest and Playwright; Kennel's own; and the clients, which its tests start.
test-clients: $(PAGE)/.installed $(CLIENTS)/.installed
	@test -x "$(KENNEL_CHROMIUM)" || { \
	  echo "error: no Chromium: apt install chromium, or make KENNEL_CHROMIUM=/path/to/it ..."; exit 1; }
	PYTHONPATH=$(CURDIR) $(PAGE)/bin/python -m pytest -q -rs tests/launch/page
	KENNEL_CLIENTS_PYTHON=$(CURDIR)/$(CLIENTS)/bin/python \
	  $(BIN)/python -m pytest -q -rs tests/launch/service/test_served_bundle.py

$(PAGE)/.installed: tests/launch/page/environment.txt
$(CLIENTS)/.installed: tests/launch/service/clients.txt
$(PAGE)/.installed $(CLIENTS)/.installed: | $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python -r $(filter %.txt,$^)
	@touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Nothing that a run made: `python -m t5x_style.gc` deletes versions that nobody uses.
clean:
	rm -rf .jax_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build kennel.egg-info .venv
