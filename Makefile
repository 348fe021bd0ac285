# Two commands on a fresh machine: `make demo` and `make test`. Each does all the set-up it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
# Compiled modules are kept whatever the environment says: else each of the many processes compiles all of them anew.
export PYTHONDONTWRITEBYTECODE :=

# Vast's own client, in an environment of its own: its releases pin versions that ours contradict. Tests skip without.
VASTAI := vastai==1.9.1

.PHONY: demo test whole lint audit oracle bench docs clean

demo: $(STAMP)
	$(BIN)/ups demo

# What must be there before the tests, at the same time: each of the three waits for a disk or the network, or has one
# thread. Then four workers for two cores, as many tests wait for processes; the longest files first
# (tests/conftest.py), which pytest-xdist would put last, for they have few tests.
test: $(STAMP)
	$(MAKE) -j lint $(COMPILED) $(BIN)/vastai
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

# Runs as a user begins them: with all cores and nothing of the above in the environment, one after the other.
whole: $(STAMP)
	$(BIN)/pytest -m whole

lint: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

# Known holes in the pinned dependencies; skipped, with a reason, where the list of them is out of reach.
audit: $(STAMP)
	.ci/audit $(BIN)/python

# Tests against solvers of other projects, and the long ones: on purpose, not in `make test`.
oracle: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,bench,export]'
	$(BIN)/pytest -m 'oracle or slow'

bench: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,bench]'
	$(BIN)/ups bench generate --json benchmarks/generate.json

# The site, as a folder that opens without a network: build/site/index.html. A link or page that leads nowhere ends it.
docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# All modules and tests compiled, once: else each of the workers, which begin together, compiles all of them.
$(COMPILED): $(STAMP) $(shell find src tests -name '*.py')
	$(BIN)/pytest --collect-only > $(VENV)/collected.txt 2>&1 || { cat $(VENV)/collected.txt; exit 1; }
	touch $@

$(BIN)/vastai: Makefile | $(STAMP)
	-$(PYTHON) -m venv $(VENV)/vastai && $(VENV)/vastai/bin/pip install --quiet --disable-pip-version-check $(VASTAI) && ln -sf ../vastai/bin/vastai $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
