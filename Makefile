# All development tasks. `make` alone lists the targets.
#
# Needs Python >= 3.11, a C compiler and make. The first run downloads the tools into .venv; later runs
# need no network, and rebuild the native core when its sources change.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell .ci/python)
VENV ?= .venv
VERSIONS ?= 3.11 3.12 3.13
# One more than there are cores: tests of processes and clocks wait as much as they compute.
WORKERS ?= $(shell expr 1 + $$(nproc 2>/dev/null || echo 2))
TEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
FUZZ_SECONDS ?= 300
FUZZ_TARGETS ?=

SANITIZED := tests/format tests/fuzz tests/storage/test_live_damage.py

IMPLEMENTATION_INDEPENDENT := model spark cli docs integrations test_packaging.py test_errors.py test_options.py \
  test_exported_members.py channel/schema/test_schema.py channel/schema/test_compatibility.py blocking/test_polling.py

# What `make check` runs: each layer's main modules, without processes that are killed, disks and Spark.
CORE := format/append format/read storage/log storage/segments storage/consumers storage/reading storage/capacity \
  channel/aio blocking/test_sender.py blocking/test_receiver.py test_errors.py test_options.py test_exported_members.py

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
NATIVE_SOURCES := $(shell find src/filechannel/_format/_native -name '*.[ch]')

# Tests start thousands of interpreters, and each would compile the package again if this forbade keeping the result.
export PYTHONDONTWRITEBYTECODE :=
# pyright and its node are in .venv (pyright[nodejs]); this stops its check for a newer version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# The stamp file of each step; it is written only when the step succeeded.
CREATED := $(VENV)/.created
INSTALLED := $(VENV)/.installed
NATIVE := $(VENV)/.native
DOCS := $(VENV)/.docs
FUZZ := $(VENV)/.fuzz
PEERS := .venvs/peers/.installed
WHEELHOUSE := $(VENV)/wheelhouse/.complete

.PHONY: help setup demo check test checks lint types mypy pyright known native pure bench bench-compare bench-spark docs site versions soak sanitize fuzz java xfsprogs clean dist

help:  ## Show this list
	@echo "usage: make [target] [PYTHON=python3.12] [WORKERS=3] [TEST_ARGS='-k name']"
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup: $(NATIVE) $(DOCS)  ## Create .venv with the package (editable) and every tool

demo: $(NATIVE) java  ## Set up and run the demo
	$(BIN)/filechannel demo

test: checks native pure  ## Set up, then lint, types, docs and the test suite on both implementations

check: $(NATIVE)  ## Lint, types and a core of the suite, in about two minutes
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target mypy lint
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(CORE:%=tests/%) $(TEST_ARGS)

# Two at a time, after their prerequisites are built.
checks: $(NATIVE) $(DOCS)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target mypy pyright site known lint

lint: $(INSTALLED)  ## Check style, format and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: mypy pyright known  ## Run mypy --strict and pyright, and check that all public types are known

mypy: $(INSTALLED)
	$(BIN)/mypy --strict --python-executable $(BIN)/python

pyright: $(INSTALLED)
	$(BIN)/pyright --pythonpath $(BIN)/python

known: $(INSTALLED)
	. $(BIN)/activate && pyright --verifytypes filechannel --ignoreexternal  # has no --pythonpath

native: $(NATIVE) $(WHEELHOUSE) java xfsprogs  ## Run the test suite on the native core
	@if $(BIN)/python .ci/native_core.py built; then set -x; $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(TEST_ARGS); \
	  else echo "native: skipped, the native core could not be built here; make pure runs the suite on the pure implementation"; fi

pure: $(NATIVE) xfsprogs  ## Run the test suite on the pure-Python implementation
	@# Tests that do not depend on the implementation are left out; tests/format and tests/storage cover what Spark uses.
	FILECHANNEL_PURE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(IMPLEMENTATION_INDEPENDENT:%=--ignore=tests/%) $(TEST_ARGS)

bench: $(NATIVE) $(PEERS)  ## Run the benchmarks; arguments in BENCH_ARGS
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-compare: $(NATIVE)  ## Compare the benchmarks with a build of another commit: BASE=commit
	$(BIN)/python -m benchmarks.compare $(BASE) $(BENCH_ARGS)

bench-spark: $(NATIVE) java  ## Run the Spark benchmarks; arguments in BENCH_ARGS
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

docs: $(DOCS)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Like docs, but skipped on a machine that could not install the tools.
site: $(DOCS)
	@if test -x $(BIN)/mkdocs; then $(MAKE) --no-print-directory docs; \
	  else echo "docs: skipped, MkDocs could not be installed here"; fi

versions:  ## Run the test suite on every Python of VERSIONS that is found, each in .venvs/
	@for version in $(VERSIONS); do \
	  python=$$(.ci/python $$version) || continue; \
	  echo "== Python $$version: $$python"; \
	  $(MAKE) --no-print-directory VENV=.venvs/$$version PYTHON="$$python" native || exit 1; \
	done

soak: $(NATIVE) $(FUZZ)  ## Run the soak tests; arguments in SOAK_ARGS
	@$(BIN)/python -m pytest -m soak --timeout=0 $(SOAK_ARGS) || { code=$$?; \
	  test $$code = 5 && echo "no soak tests match" || exit $$code; }

sanitize: $(NATIVE)  ## Test the C core under ASan and UBSan: tests/format, the fuzz corpus, live damage
	$(BIN)/python .ci/sanitize.py -m pytest -n $(WORKERS) --dist loadgroup --timeout=600 $(SANITIZED) $(TEST_ARGS)

fuzz: $(NATIVE) $(FUZZ)  ## Fuzz each parser for FUZZ_SECONDS, guided by coverage; findings go to build/fuzz
	$(BIN)/python -m tests.fuzz run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

java:
	@.ci/java

xfsprogs:
	@.ci/xfsprogs

dist: $(INSTALLED)  ## Build sdist and wheel into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## Remove build output; .venv stays, so that offline work is possible
	rm -rf build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f $(VENV)/.native .venvs/*/.native
	find src -name '*.so' -delete
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(CREATED):
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot create environments" \
	  "(Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV) with $$($(BIN)/python --version); the first time this downloads the tools"
	$(PIP) install --upgrade pip 'setuptools>=77' wheel
	@touch $@

# The next step builds the extension, where its messages are visible.
$(INSTALLED): pyproject.toml | $(CREATED)
	FILECHANNEL_NO_NATIVE=1 $(PIP) install --no-build-isolation --editable '.[dev]'
	@touch $@

# With a compiler and headers a failed build is an error, so that the pure implementation does not hide it.
$(NATIVE): $(INSTALLED) setup.py $(NATIVE_SOURCES)
	@if $(BIN)/python .ci/native_core.py possible; then export FILECHANNEL_REQUIRE_NATIVE=1; fi; \
	  $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# The packages that tests install into empty environments; once downloaded, these tests need no network.
$(WHEELHOUSE): pyproject.toml | $(CREATED)
	@mkdir -p $(@D) && $(BIN)/python .ci/requirements.py cli > $(@D)/requirements.txt
	$(PIP) download --dest $(@D) --only-binary :all: --requirement $(@D)/requirements.txt
	@touch $@

# The packages that the benchmarks compare with have their own environment. Without it the report leaves them out.
$(PEERS): benchmarks/peers.txt | $(CREATED)
	@test -x .venvs/peers/bin/python || $(BIN)/python -m venv .venvs/peers
	@complete=yes; for package in $$(cat $<); do \
	  echo "Installing $$package into .venvs/peers, to compare with"; \
	  .venvs/peers/bin/python -m pip --disable-pip-version-check --quiet --quiet install --retries 1 $$package || complete=no; \
	done; \
	if test $$complete = yes; then touch $@; \
	  else echo "bench: not everything to compare with could be installed; the report says what is left out"; fi

# atheris exists for few versions of Python: elsewhere the corpus is only replayed, without fuzzing.
$(FUZZ): $(INSTALLED)
	@if FILECHANNEL_NO_NATIVE=1 $(PIP) install --no-build-isolation --editable '.[fuzz]'; then touch $@; \
	  else echo "fuzz: atheris could not be installed here"; fi

# The tools of the documentation. Tests and type checks do not need them.
$(DOCS): $(INSTALLED)
	@if FILECHANNEL_NO_NATIVE=1 $(PIP) install --no-build-isolation --editable '.[docs]'; then touch $@; \
	  else echo "docs: what the site is made with could not be installed"; fi
