# make quickstart   make shards, train on real digits in about a minute, evaluate, report (runs/quickstart)
# make check        check the numbers on this machine and draw the masks (output/masks.png)
# make gpu-check    check the GPU kernels, on a GPU or as far as it goes without (output/gpu-check)
# make test         everything that must hold: format, lint, types, all tests; the slowest 20 are named
# make test-plain   all tests without the C++ operators; make test runs a selection of them
# make test-fast    the tests without the slow ones
# make test-oldest  the tests with the oldest versions that pyproject.toml allows (.venv-oldest)
# make test-wheel   builds a wheel, installs it outside the checkout and uses it there
# make lint         format, lint, types
# make docs         the documentation as a site that works offline (output/site)
# make clean        remove caches and output; .venv stays
#
# PYTHON=python3.12 make test   picks the interpreter that makes .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.vit_rpe-installed
DOCS_STAMP := .venv/.vit_rpe-docs-installed
# Two processes with one thread each: more threads than cores would only get in each other's way.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# What differs most without the C++ operators.
PLAIN := tests/attention/test_plan.py tests/attention/test_paths.py tests/layers tests/models/test_stream.py

OLDEST := .venv-oldest
# What meets other packages; the mathematics of masks and graphs is torch's only.
OLDEST_TESTS := tests/data tests/training tests/models tests/tools tests/cli tests/attention tests/rpe \
	tests/graph/test_equivalences.py tests/graph/test_distances.py tests/graph/trees tests/graph/gkat/test_models.py tests/graph/gkat/test_transforms.py tests/test_readme.py

.PHONY: quickstart check gpu-check test test-plain test-fast test-oldest test-wheel lint docs clean
.DELETE_ON_ERROR:

quickstart: $(STAMP)
	$(BIN)/python train.py --recipe recipes/quickstart.yaml
	$(BIN)/python tools/evaluate.py --checkpoint runs/quickstart --data data/digits \
		--workers 0 --output runs/quickstart/evaluation
	@echo "Look at runs/quickstart/report.html: it opens in any browser, offline."

check: $(STAMP)
	$(BIN)/python tools/self_check.py

gpu-check: $(STAMP)
	$(BIN)/python -m vit_rpe check --device cuda --output output/gpu-check

test: lint
	$(PYTEST) --durations=20
	VIT_RPE_NATIVE=0 $(PYTEST) $(PLAIN)

# Without the C++ operators, as on a machine that has no compiler.
test-plain: $(STAMP)
	VIT_RPE_NATIVE=0 $(PYTEST)

test-fast: $(STAMP)
	$(PYTEST) -m "not slow"

# An environment of its own, 5 GB; torch compiles the backward pass of clips from 2.12 on.
test-oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
		-e ".[train,report,export,http,native,graph,video]"
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 -m "not slow" $(OLDEST_TESTS) \
		--deselect tests/models/test_export.py::test_torch_compile

# Builds outside the checkout; the environment of the wheel is thrown away.
test-wheel: $(STAMP)
	$(PYTEST) -n 0 tests/wheel.py

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

# NO_MKDOCS_2_WARNING: the theme advertises its successor in every build.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Look at output/site/index.html: it opens in any browser, offline."

clean:
	rm -rf build output .pytest_cache .ruff_cache .hypothesis
	find vit_rpe tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that is already there, or linked to, is used and never made anew.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# Beside the rest, so that tests need not wait for it.
$(DOCS_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@
