# Everything installs into .venv by itself: `make demo` and `make test` work on a bare machine with Python 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
unexport PYTHONDONTWRITEBYTECODE # else every process of the tests compiles the package anew

.PHONY: setup demo test test-oldest test-newest test-launchers test-integrations check docs bench bench-gpu browser soak zoo conformance clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mpi,viz,examples,docs,sklearn,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/picture_on_a_grid.py
	$(BIN)/python examples/lenet_mnist.py
	$(BIN)/python examples/seams.py

check: $(READY)
	$(BIN)/ruff check src tests examples benchmarks zoo conformance
	$(BIN)/ruff format --check src tests examples benchmarks zoo conformance
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python tools/check_links.py

# The site, from docs/ and the docstrings: open build/docs/index.html. Nothing is fetched; a warning is an error.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

SHORT := not soak and not launchers and not browser and not integrations
# Whole files to two test processes, long ones first (tests/conftest.py). Tests that kill workers and watch the clock come
# afterwards, beside nothing that computes: three at a time, since they mostly wait.
FILES := --dist loadfile --no-loadscope-reorder
TWO := -n 2 $(FILES)
CLOCK := tests/comm/launching tests/comm/supervision
test: check
	$(BIN)/python -m pytest -m '$(SHORT)' $(TWO) $(CLOCK:%=--ignore=%)
	$(BIN)/python -m pytest -m '$(SHORT)' -n 3 $(FILES) $(CLOCK)

# Open MPI, Slurm and two hosts, each started for the tests; installs Debian's packages where it may, skips what is not there.
test-launchers: $(READY)
	tests/launchers/install.sh
	$(BIN)/python -m pytest tests/launchers -m launchers --timeout=900 -v

# Adapters, with the libraries that they adapt, in an environment of their own.
INTEGRATIONS := .venv-integrations
$(INTEGRATIONS)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --upgrade pip
	$(INTEGRATIONS)/bin/python -m pip install --quiet -c constraints.txt torch
	$(INTEGRATIONS)/bin/python -m pip install --quiet -c constraints.txt -e '.[integrations,dev]'
	touch $@

test-integrations: $(INTEGRATIONS)/ready
	$(INTEGRATIONS)/bin/python -m pytest -m integrations tests/integrations

# The same tests with the oldest versions that pyproject.toml promises, in an environment of their own.
OLDEST := .venv-oldest
$(OLDEST)/ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt torch
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[mpi,viz,examples,docs,sklearn,dev]'
	touch $@

test-oldest: $(OLDEST)/ready
	$(OLDEST)/bin/python -m pytest -m '$(SHORT)' $(TWO)

# The same tests with the newest versions of today, in an environment of their own; what builds the site stays as it is pinned.
NEWEST := .venv-newest
SITE := sphinx|furo|numpydoc|myst-parser|docutils
test-newest:
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	grep -E '^($(SITE))==' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -c $(NEWEST)/constraints.txt \
		-e '.[mpi,viz,examples,docs,sklearn,dev]'
	$(NEWEST)/bin/gridwise doctor
	$(NEWEST)/bin/python -m pytest -m '$(SHORT)' $(TWO) $(CLOCK:%=--ignore=%)
	$(NEWEST)/bin/python -m pytest -m '$(SHORT)' -n 3 $(FILES) $(CLOCK)

soak: $(READY)
	$(BIN)/python -m pytest -m soak --timeout=3600 $(TWO) $(CLOCK:%=--ignore=%)
	$(BIN)/python -m pytest -m soak --timeout=3600 $(CLOCK)

# Pages in Debian's chromium, without a screen.
browser: $(READY)
	$(BIN)/python -m pytest -m browser tests/planning tests/docs

bench: $(READY)
	$(BIN)/python benchmarks/run.py --write

# What needs a GPU, or many cores.
bench-gpu: $(READY)
	$(BIN)/python benchmarks/run.py --write gpu tiled_gpu captured planning_gpu tagi_gpu many_workers

# Public models on four workers against themselves; goes on where it stopped.
zoo: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[zoo]'
	$(BIN)/python -m pip install --quiet --no-deps 'ultralytics>=8.3' # asks for OpenCV with windows, which a server cannot load
	$(BIN)/python -m zoo.run --write

# Other people's tests, cut in many ways, compared with docs/conformance.md; goes on where it stopped. A twentieth takes less than
# 30 minutes on two cores, with a suite on each; all of them, FRACTION=1, a night.
FRACTION := 0.05
JOBS := 2
conformance: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[conformance]'
	$(BIN)/python -m conformance.run --fraction $(FRACTION) --jobs $(JOBS) --write

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-integrations out build docs/api .pytest_cache .mypy_cache .ruff_cache .hypothesis
